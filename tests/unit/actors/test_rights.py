"""Each method of each endpoint in a table: which credential it takes, which right of a token, and what checks that.

A new method without a row fails, and so does a row whose right is not what the guard refuses: each right of a row is
taken away in turn, and the request has to be refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from raylog.actors.permissions import NamedTopic, permissions
from raylog.core.queues.policy import DEAD_LETTERS
from raylog.protocol.documents.registry import ENDPOINTS
from raylog.protocol.message import Message
from raylog.protocol.method import Endpoint
from raylog.rpc import Grant, Role, TopicGrant
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from raylog.storage.batch.header import TRANSACTIONAL_BIT, claims_of
from raylog.storage.batch.records import BatchMeta, encode_batch
from tests.unit.actors.test_permissions import Answers, handed_over
from tests.unit.protocol.samples import of_this_release

READS, WRITES = TopicGrant("in", "in", ALL_PARTITIONS), TopicGrant("out", "out", (), True)
ALL: Final = Grant(2**33, (READS, WRITES), transactional_id_prefix="tx-", group="g")
WITHOUT: Final[dict[str, Grant]] = {
    "read": replace(ALL, topics=(WRITES,)),
    "write": replace(ALL, topics=(READS,)),
    "prefix": replace(ALL, transactional_id_prefix=None),
    "group": replace(ALL, group=None),
}
"""The same without one right."""
GUARD, SCHEDULER, FILTERED = (
    "the guard",
    "the guard, and the scheduler",
    "the guard; the coordinator leaves out the rest",
)
WRITER = encode_batch(None, [b"v"], [1], meta=BatchMeta(7, 0, 0))
INSIDE = encode_batch(None, [b"v"], [1], meta=BatchMeta(7, 0, 0, attributes=TRANSACTIONAL_BIT))


@dataclass(frozen=True)
class Right:
    """What a token needs for a method: ``rights`` name what it cannot do without."""

    rights: tuple[str, ...]
    args: list[Any]
    """The first fields of a request that is covered; the others are samples."""
    checked_by: str = GUARD
    payload: bytes = b""


IN, OUT, THERE = ["in", 0, 0], ["out", 0, 0], ["s", 0, 0]
OFFSET, PLACE = ["in", "in", 0, 7, -1, ""], ["in", "in", 0]
TOKENS: Final[dict[str, list[Right]]] = {
    "metadata": [
        Right(("read",), [["in"]]),
        Right(("write",), [["out"]]),
        Right(("write",), [["__scheduled"]]),
        Right(("prefix",), [["__transaction_state"]]),
        Right(("group", "read"), [["retry.g.in"]]),
    ],
    "init_producer_id": [Right(("write",), [False])],
    "find_coordinator": [Right(("group",), ["group", "g"]), Right(("prefix",), ["transaction", "tx-1"])],
    "ensure_internal_topic": [Right(("write",), ["__scheduled"])],
    "produce": [
        Right(("write",), [*OUT, -1, 1, ""], payload=WRITER),
        Right(("write", "prefix"), [*OUT, -1, 1, "tx-1"], payload=INSIDE),
    ],
    "fetch": [Right(("read",), IN)],
    "fetch_near": [Right(("read",), IN)],
    "list_offsets": [Right(("read",), IN), Right(("prefix",), ["t", 0, 0])],
    "find_times": [Right(("read",), IN)],
    "offset_for_leader_epoch": [Right(("read",), IN)],
    "schedule": [Right(("write",), THERE, SCHEDULER)],
    "describe_scheduler": [Right(("write",), THERE, SCHEDULER)],
    "decide_halves": [Right(("write", "group"), [*THERE, "g"])],
    "poll_halves": [Right(("write", "group"), [*THERE, "g"])],
    "queue_open": [
        Right(("read", "group"), [*IN, "g", "me", {}]),
        Right(("read", "group", "write"), [*IN, "g", "me", {DEAD_LETTERS: "out"}]),
        Right(("read", "group"), ["again", 0, 0, "g", "me", {}]),
    ],
    "queue_fetch": [Right(("read", "group"), [*IN, "g"]), Right(("read", "group"), ["again", 0, 0, "g"])],
    "queue_acknowledge": [Right(("read", "group"), [*IN, "g"]), Right(("read", "group"), ["again", 0, 0, "g"])],
    "queue_leave": [Right(("read", "group"), [*IN, "g"]), Right(("read", "group"), ["again", 0, 0, "g"])],
    "join_group": [Right(("group",), ["g"])],
    "sync_group": [Right(("group",), ["g"])],
    "heartbeat": [Right(("group",), ["g"])],
    "leave_group": [Right(("group",), ["g"])],
    "consumer_group_heartbeat": [Right(("group", "read"), ["g", "me", 0, None, 1, "c", 1, 1, 1, ["in"], None, []])],
    "offset_commit": [Right(("group", "read"), ["g", 1, "me", [OFFSET]])],
    "offset_fetch": [Right(("group", "read"), ["g", [PLACE]])],
    "txn_offset_commit": [Right(("group", "read", "prefix"), ["g", 1, "me", None, "tx-1", 7, 0, [OFFSET]])],
    "describe_group": [Right(("group",), ["g"], FILTERED)],
    "init_transactions": [Right(("prefix",), ["tx-1"])],
    "add_partitions_to_txn": [Right(("prefix", "write"), ["tx-1", 7, 0, [["out", "out", 0]]])],
    "add_offsets_to_txn": [Right(("prefix", "group"), ["tx-1", 7, 0, "g"])],
    "end_txn": [Right(("prefix",), ["tx-1"])],
    "list_transactions": [Right(("prefix",), [[], -1, "tx-"])],
    "describe_transaction": [Right(("prefix",), ["tx-1"])],
}
"""Methods that a token covers, with the requests for which it needs something else."""
CLIENTS: Final = frozenset(
    (
        *("create_topic", "delete_topic", "alter_topic_config", "alter_cluster_config"),
        *("describe_configs", "create_partitions"),
        *("alter_partition_reassignments", "list_partition_reassignments", "elect_leaders", "stop_broker"),
        *("resume_broker", "raise_feature_level", "wake_partitions", "describe_cluster", "delete_records"),
        *("write_txn_markers", "describe_producers", "replica_status", "cancel_scheduled", "move_scheduled"),
        *("list_scheduled", "find_scheduled", "list_halves", "queue_describe", "queue_peek", "queue_reset"),
        *("list_share_states", "delete_share_state", "start_redrive", "list_redrives", "cancel_redrive"),
        *("offset_reset", "offset_delete", "list_groups", "delete_group"),
    )
)
"""Methods that take the clients' secret; checked by the connection, by the proved role."""
MEMBERS: Final = frozenset(
    (
        *("clock", "broker_metrics", "voter_promise", "voter_append", "voter_read", "voter_snapshot"),
        *("replica_fetch", "replica_metrics", "read_share_state", "write_share_state", "load_forwarder"),
        *("save_forwarder", "end_txn_offsets", "coordinator_metrics", "verify_transaction", "transaction_metrics"),
    )
)
"""Methods that take the cluster's secret."""
SESSIONS: Final = frozenset(("controller", "broker's session", "replica's session", "coordinator's session"))
"""Endpoints that admit members of the cluster only."""
INTERNAL: Final = frozenset(("produce", "delete_records", "write_txn_markers"))
"""Methods that take the cluster's secret where they are about coordinators' topics."""


def known(name: str) -> NamedTopic:
    """What an endpoint knows of topics."""
    ids = {"__scheduled": "s", "__transaction_state": "t", "retry.g.in": "again"}
    return NamedTopic(ids.get(name, ""), "in" if name == "retry.g.in" else "")


def cases() -> Iterator[tuple[Endpoint, str, Right]]:
    for endpoint in ENDPOINTS:
        if endpoint.name not in SESSIONS:
            for name in endpoint.methods:
                yield from ((endpoint, name, right) for right in TOKENS.get(name, ()))


def args_of(request: type[Message], begin: list[Any]) -> list[Any]:
    return [*begin, *of_this_release(request)[len(begin) :]]


def lacking(endpoint: Endpoint, name: str, right: Right, grant: Grant) -> str:
    """The sentence of the refusal; empty when the handler got the request."""
    found = permissions(endpoint, named=known, claims_of=claims_of)
    args = args_of(endpoint.methods[name].request, right.args)
    return handed_over(found, Answers(), name, args, grant, right.payload)


def test_every_method_has_a_row() -> None:
    rows = TOKENS.keys() | CLIENTS | MEMBERS
    assert len(rows) == len(TOKENS) + len(CLIENTS) + len(MEMBERS), "a method has one"
    found = {name for endpoint in ENDPOINTS if endpoint.name not in SESSIONS for name in endpoint.methods}
    assert found == rows


def test_every_method_takes_the_credential_of_its_row() -> None:
    for endpoint in ENDPOINTS:
        for name, method in endpoint.methods.items():
            role = Role.TOKEN if name in TOKENS else Role.CLIENT if name in CLIENTS else Role.CLUSTER
            assert method.role == (Role.CLUSTER if endpoint.name in SESSIONS else role), (endpoint.name, name)
            assert (method.internal_role == Role.CLUSTER) is (name in INTERNAL), name


@pytest.mark.parametrize(
    ("endpoint", "name", "right"),
    [pytest.param(*case, id=f"{case[0].name}-{case[1]}-{number}") for number, case in enumerate(cases())],
)
def test_every_right_of_a_row_is_needed(endpoint: Endpoint, name: str, right: Right) -> None:
    assert lacking(endpoint, name, right, ALL) == ""
    for each in right.rights:
        assert "lacks" in lacking(endpoint, name, right, WITHOUT[each]), f"without the right: {each}"
    for each in WITHOUT.keys() - set(right.rights):
        assert lacking(endpoint, name, right, WITHOUT[each]) == "", f"{each} is not needed"


FOREIGN: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("another topic", lambda value: "else" if value in ("in", "out", "s", "t", "again") else value),
    ("another group", lambda value: "other" if value == "g" else value),
    ("another id", lambda value: "other" if value in ("tx-1", "tx-") else value),
)


@pytest.mark.parametrize(
    ("endpoint", "name", "right"),
    [pytest.param(*case, id=f"{case[0].name}-{case[1]}-{number}") for number, case in enumerate(cases())],
)
def test_a_request_about_something_else_is_refused(endpoint: Endpoint, name: str, right: Right) -> None:
    def changed(value: Any, change: Callable[[Any], Any]) -> Any:
        if isinstance(value, list):
            return [changed(each, change) for each in value]
        if isinstance(value, dict):
            return {key: changed(each, change) for key, each in value.items()}
        return change(value)

    for what, change in FOREIGN:
        args = changed(right.args, change)
        if args != right.args:
            assert "lacks" in lacking(endpoint, name, replace(right, args=args), ALL), f"{what}: {args}"
