"""The methods of all pages together: endpoints, roles, forwarding."""

import msgspec
import pytest

from raylog.actors.permissions import permissions
from raylog.base.features import LEVELS
from raylog.protocol.broker import BROKER
from raylog.protocol.controller import CONTROLLER
from raylog.protocol.documents.registry import ENDPOINTS, methods
from raylog.protocol.message import Message
from raylog.protocol.method import Endpoint, TokenScope
from raylog.protocol.replica import FETCH, REPLICA
from raylog.rpc import Role

NEEDED = {
    TokenScope.NOTHING: set[str](),
    TokenScope.TOPICS: {"topics"},
    TokenScope.READ: {"topic_id", "partition"},
    TokenScope.OFFSETS: {"topic_id", "partition"},
    TokenScope.WRITE: {"topic_id", "partition"},
    TokenScope.SCHEDULE: {"topic_id"},
    TokenScope.SCHEDULER: set(),
    TokenScope.HALVES: {"topic_id", "group"},
    TokenScope.QUEUE: {"topic_id", "partition", "group_id"},
    TokenScope.QUEUE_SETTINGS: {"topic_id", "partition", "group_id", "settings"},
    TokenScope.PRODUCER: set(),
    TokenScope.COORDINATOR: {"key_type", "key"},
    TokenScope.TRANSACTION: {"transactional_id"},
    TokenScope.TRANSACTION_PARTITIONS: {"transactional_id", "partitions"},
    TokenScope.TRANSACTION_OFFSETS: {"transactional_id", "group_id"},
    TokenScope.TRANSACTION_COMMIT: {"transactional_id", "group_id", "offsets"},
    TokenScope.PREFIX: {"transactional_id_prefix"},
    TokenScope.GROUP: {"group_id"},
    TokenScope.GROUP_VIEW: {"group_id"},
    TokenScope.GROUP_OFFSETS: {"group_id"},
    TokenScope.SUBSCRIPTION: {"group_id", "subscribed_topics"},
}
"""The fields of a request that a token is compared with."""
READS = {"metadata", "fetch", "fetch_near", "list_offsets", "offset_for_leader_epoch", "find_times"}
WRITES = {"produce", "init_producer_id"}
TRANSACTIONS = {
    *("find_coordinator", "init_transactions", "add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit"),
    *("end_txn", "list_transactions", "describe_transaction"),
}
GROUPS = {
    *("join_group", "sync_group", "heartbeat", "leave_group", "offset_commit", "offset_fetch", "describe_group"),
    "consumer_group_heartbeat",
}
QUEUES = {"queue_open", "queue_fetch", "queue_acknowledge", "queue_leave"}
DELAYS = {"ensure_internal_topic", "describe_scheduler", "schedule", "decide_halves", "poll_halves"}


def test_every_method_says_what_it_does() -> None:
    for endpoint, method in methods():
        assert method.meaning.endswith((".", ":")), f"{endpoint.name} {method.name}"
        assert method.since in LEVELS


def test_an_endpoint_states_a_method_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Endpoint.of("replica", [FETCH, FETCH])
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)


def test_what_a_broker_forwards_the_controller_serves_alike() -> None:
    forwarded = [method for method in BROKER.methods.values() if method.forwarded]
    assert forwarded
    for method in forwarded:
        served = CONTROLLER.methods[method.name]
        assert (served.request, served.reply, served.role) == (method.request, method.reply, Role.CLUSTER)


def test_what_moves_the_cluster_is_the_clusters_own() -> None:
    assert {method.role for method in CONTROLLER.methods.values()} == {Role.CLUSTER}
    assert REPLICA.methods["replica_fetch"].role == Role.CLUSTER
    assert {method.role for name, method in BROKER.methods.items() if name.startswith("voter_")} == {Role.CLUSTER}
    internal = permissions(REPLICA, is_internal=True)
    assert internal.roles["produce"] == Role.CLUSTER, "or a client could commit any group's offsets"
    assert permissions(REPLICA).roles["produce"] == Role.TOKEN


def test_a_token_covers_what_its_holder_may_call_and_nothing_else() -> None:
    covered = {method.name for _, method in methods() if method.token is not TokenScope.NOTHING}
    holders = {method.name for _, method in methods() if method.role == Role.TOKEN}
    assert holders == covered == READS | WRITES | TRANSACTIONS | GROUPS | QUEUES | DELAYS
    for _, method in methods():
        fields = [field.name for field in msgspec.structs.fields(method.request)]
        assert NEEDED[method.token] <= set(fields)
        if method.token in (TokenScope.READ, TokenScope.OFFSETS, TokenScope.WRITE):
            assert fields[:2] == ["topic_id", "partition"], "they are looked up without reading the request"


def test_requests_of_one_endpoint_differ_by_type() -> None:
    for endpoint in ENDPOINTS:
        kinds = [method.request for method in endpoint.methods.values()]
        assert len(set(kinds)) == len(kinds), "shells choose the handler by it"
        assert all(issubclass(kind, Message) for kind in kinds)
