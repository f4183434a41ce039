"""A peer of a later release: each of its requests, replies and records has fields that this release does not know.

Patches the seams that all of them pass, for everything in this process. Fields are added where a release may add
them: after the arguments of a request, after the values of an answer, and after the fields of each row in either.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec

from raylog.base.errors import InvalidRequest
from raylog.core.groups.records import GroupChanged, OffsetCommitted
from raylog.core.metadata.records import MetadataRecord
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.protocol.documents.registry import methods
from raylog.protocol.message import read
from raylog.rpc import connection
from raylog.rpc.framing import NOTIFICATION, REQUEST, encode_header
from raylog.rpc.request import Request
from tests.unit.protocol.samples import NEW, grown


class Seen:
    """The methods with extended requests and answers."""

    def __init__(self) -> None:
        self.requests: set[str] = set()
        self.answers: set[str] = set()


@contextmanager
def all_are_of_a_later_release() -> Iterator[Seen]:
    """Have everything in this process send like a later release, and read like this one."""
    seen = Seen()

    def header(kind: int, number: int, third: Any, args: Any, payload_bytes: int) -> bytes:
        if kind in (REQUEST, NOTIFICATION):
            seen.requests.add(third)
            args = _grown(third, "request", args)
        return encode_header(kind, number, third, args, payload_bytes)

    reply = Request.reply

    def answered(self: Request, args: Any = None, payload: Any = b"") -> None:
        seen.answers.add(self.method)
        reply(self, _grown(self.method, "reply", args), payload)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(connection, "encode_header", header))
        stack.enter_context(mock.patch.object(Request, "reply", answered))
        for kind in (MetadataRecord, PartitionState, ReplicaPlace):
            stack.enter_context(mock.patch.object(kind, "to_wire", _grown_row(kind.to_wire)))
        for written in (OffsetCommitted, GroupChanged):
            stack.enter_context(mock.patch.object(written, "to_wire", _grown_value(written.to_wire)))
        yield seen


def _grown_row(to_wire: Any) -> Any:
    return lambda self: [*to_wire(self), NEW]


def _grown_value(to_wire: Any) -> Any:
    def row(self: Any) -> Any:
        key, value = to_wire(self)
        fields = grown(type(self), [*key[1:], *value[1:]])
        return key, [value[0], *fields[len(key) - 1 :]]

    return row


def _grown(name: str, part: str, args: Any) -> Any:
    """Return arguments with a field added to each message in them, by the page that defines the method."""
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(() if args is None else args))
    kinds = [getattr(method, part) for _, method in methods() if method.name == name and _fits(method, part, wire)]
    assert kinds, f"no page states the {part} of {name}: {wire!r:.200}"
    return grown(min(kinds, key=lambda kind: _unlike(kind, wire)), wire)


def _fits(method: Any, part: str, wire: Any) -> bool:
    """Return whether a method may have these arguments; another endpoint may have one of the same name."""
    try:
        read(getattr(method, part), wire, method.name)
    except InvalidRequest:
        return False
    return True


def _unlike(kind: Any, wire: Any) -> int:
    """Return by how many fields arguments differ from a message of this kind."""
    return abs(len(getattr(kind, "__struct_fields__", ())) - len(wire))
