"""The methods of all pages together: endpoints, roles, forwarding."""

import msgspec
import pytest

from raylog.core.features import LEVELS
from raylog.protocol.broker import BROKER
from raylog.protocol.controller import CONTROLLER
from raylog.protocol.message import Message
from raylog.protocol.method import Endpoint, TokenScope
from raylog.protocol.permissions import permissions
from raylog.protocol.registry import ENDPOINTS, methods
from raylog.protocol.replica import FETCH, REPLICA
from raylog.rpc import ReadGrant, Role, TopicGrant

NEEDED = {
    TokenScope.NOTHING: set[str](),
    TokenScope.TOPICS: {"topics"},
    TokenScope.PARTITION: {"topic_id", "partition"},
}
"""The fields of a request that a token is compared with."""
GRANT = ReadGrant(expires_s=2**31, topics=[TopicGrant("id", "t", [0, 2])])


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
    assert permissions(REPLICA).roles["produce"] == Role.CLIENT


def test_a_token_covers_what_readers_may_call_and_nothing_else() -> None:
    covered = {method.name for _, method in methods() if method.token is not TokenScope.NOTHING}
    readers = {method.name for _, method in methods() if method.role == Role.READER}
    assert readers == covered == {"metadata", "fetch", "fetch_near", "list_offsets", "offset_for_leader_epoch"}
    for _, method in methods():
        fields = {field.name for field in msgspec.structs.fields(method.request)}
        needed = {
            TokenScope.NOTHING: set(),
            TokenScope.TOPICS: {"topics"},
            TokenScope.PARTITION: {"topic_id", "partition"},
        }
        assert needed[method.token] <= fields


def test_a_token_reads_the_partitions_that_it_names() -> None:
    covers, of_broker = permissions(REPLICA).covers, permissions(BROKER).covers
    assert covers("fetch", ["id", 2, 0, 0, 1, 1, 0, 0], GRANT)
    assert not covers("fetch", ["id", 1, 0, 0, 1, 1, 0, 0], GRANT)
    assert not covers("fetch", ["other", 0, 0, 0, 1, 1, 0, 0], GRANT)
    assert not covers("fetch", ["id", 0], GRANT), "malformed"
    assert not covers("produce", ["id", 0, 0, 1, 1], GRANT)
    assert of_broker("metadata", [["t"]], GRANT)
    assert not of_broker("metadata", [["t", "u"]], GRANT)
    assert not of_broker("metadata", [None], GRANT), "all topics"


def test_requests_of_one_endpoint_differ_by_type() -> None:
    for endpoint in ENDPOINTS:
        kinds = [method.request for method in endpoint.methods.values()]
        assert len(set(kinds)) == len(kinds), "shells choose the handler by it"
        assert all(issubclass(kind, Message) for kind in kinds)
