"""The table of permissions against what the endpoints know."""

from __future__ import annotations

from collections.abc import Mapping

from raylog.actors import broker_server, controller_requests, group_requests, replica_server
from raylog.actors.permissions import (
    BROKER_METHODS,
    CONTROLLER_METHODS,
    COORDINATOR_METHODS,
    INTERNAL_REPLICA_METHODS,
    REPLICA_METHODS,
)
from raylog.actors.voter import VOTER_METHODS
from raylog.rpc import Role

TABLES: Mapping[str, Mapping[str, Role]] = {
    "broker": BROKER_METHODS,
    "replica": REPLICA_METHODS,
    "internal replica": INTERNAL_REPLICA_METHODS,
    "coordinator": COORDINATOR_METHODS,
    "controller": CONTROLLER_METHODS,
}
KNOWN: Mapping[str, set[str]] = {
    "broker": {*broker_server._ARGUMENTS, *VOTER_METHODS},
    "replica": {*replica_server._NUMBERS_BEHIND_PARTITION, "replica_status", "replica_metrics"},
    "internal replica": {*replica_server._NUMBERS_BEHIND_PARTITION, "replica_status", "replica_metrics"},
    "coordinator": {*group_requests._METHODS, "coordinator_metrics"},
    "controller": {*controller_requests._METHODS, "heartbeat", "metadata", "controller_metrics"},
}
"""What the endpoints' handlers know."""


def test_the_table_names_every_method_of_every_endpoint_and_no_others() -> None:
    assert {kind: set(table) for kind, table in TABLES.items()} == KNOWN


def test_what_moves_the_cluster_is_the_clusters_own() -> None:
    assert set(CONTROLLER_METHODS.values()) == {Role.CLUSTER}
    assert REPLICA_METHODS["replica_fetch"] == Role.CLUSTER
    assert {BROKER_METHODS[method] for method in VOTER_METHODS} == {Role.CLUSTER}
    assert INTERNAL_REPLICA_METHODS["produce"] == Role.CLUSTER, "or a client could commit any group's offsets"
    readers = {method for table in TABLES.values() for method, role in table.items() if role == Role.READER}
    assert readers == {"metadata", "fetch", "fetch_near", "list_offsets", "offset_for_leader_epoch"}
