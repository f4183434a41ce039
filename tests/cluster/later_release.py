"""A peer of a later release: every request, reply and record that leaves it has fields that this release does not know.

Patches the seams through which all of them go, for everything in this process. Fields are added where a release may add
them: behind the arguments of a request, behind the values of an answer, and behind the fields of each row in either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from raylog.core.controller.records import MetadataRecord
from raylog.core.groups.records import GroupChanged, MemberRecord, OffsetCommitted
from raylog.core.replication.state import PartitionState, ReplicaPlace
from raylog.rpc import connection
from raylog.rpc.framing import NOTIFICATION, REQUEST, encode_header
from raylog.rpc.request import Request

NEW = {"of": "a later release"}
"""What stands for a field that nobody here knows."""
REQUEST_ROWS = {
    "alter_partition": 7,
    "elect_leaders": 0,
    "join_group": 7,
    "leave_group": 1,
    "offset_commit": 3,
    "offset_fetch": 1,
    "sync_group": 4,
}
"""The argument that is a list of rows."""
REQUEST_LENGTH = {"offset_commit": 5}
"""How many arguments this release knows, where it knows optional ones."""
ANSWERS_OF_ROWS = {
    "elect_leaders",
    "leave_group",
    "list_groups",
    "list_partition_reassignments",
    "offset_commit",
    "offset_fetch",
}
"""Methods whose answer is a list of rows, not of values."""
ANSWER_LENGTH = {"fetch": 4, "fetch_near": 4}


class Seen:
    """The methods whose requests and answers were grown."""

    def __init__(self) -> None:
        self.requests: set[str] = set()
        self.answers: set[str] = set()


@contextmanager
def everybody_is_of_a_later_release() -> Iterator[Seen]:
    """Have everything in this process send what a later release sends, and read it as this one does."""
    seen = Seen()

    def header(kind: int, number: int, third: Any, args: Any, payload_bytes: int) -> bytes:
        if kind in (REQUEST, NOTIFICATION):
            seen.requests.add(third)
            args = _request(third, args)
        return encode_header(kind, number, third, args, payload_bytes)

    reply = Request.reply

    def answered(self: Request, args: Any = None, payload: Any = b"") -> None:
        seen.answers.add(self.method)
        reply(self, _answer(self.method, args), payload)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(connection, "encode_header", header))
        stack.enter_context(mock.patch.object(Request, "reply", answered))
        for kind in (MetadataRecord, MemberRecord, PartitionState, ReplicaPlace):
            stack.enter_context(mock.patch.object(kind, "to_wire", _grown_row(kind.to_wire)))
        for written in (OffsetCommitted, GroupChanged):
            stack.enter_context(mock.patch.object(written, "to_wire", _grown_value(written.to_wire)))
        yield seen


def _grown_row(to_wire: Any) -> Any:
    return lambda self: [*to_wire(self), NEW]


def _grown_value(to_wire: Any) -> Any:
    def grown(self: Any) -> Any:
        key, value = to_wire(self)
        return key, [*value, NEW]

    return grown


def _request(method: str, args: Any) -> Any:
    values = list(args or ())
    values += [None] * (REQUEST_LENGTH.get(method, 0) - len(values))
    rows = REQUEST_ROWS.get(method)
    if rows is not None and values[rows] is not None:
        values[rows] = [[*row, NEW] for row in values[rows]]
    return [*values, NEW]


def _answer(method: str, args: Any) -> Any:
    if isinstance(args, dict):
        return {**args, "of": NEW}
    values = list(args or ())
    if method in ANSWERS_OF_ROWS:
        return [[*row, NEW] for row in values]
    values += [None] * (ANSWER_LENGTH.get(method, 0) - len(values))
    if method == "metadata":
        values[2] = [[*row, NEW] for row in values[2]]
        values[3] = [_topic(row) for row in values[3]]
    if method == "join_group":
        values[4] = [[*row, NEW] for row in values[4]]
    return [*values, NEW]


def _topic(row: Any) -> Any:
    partitions = []
    for partition in row[4]:
        values = list(partition)
        values[7] = [[*place, NEW] for place in values[7]]
        partitions.append([*values, NEW])
    return [*row[:4], partitions, *row[5:], NEW]
