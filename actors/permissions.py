"""Which credential each method of each endpoint needs: the one table of it.

The cluster's secret opens everything; the clients' opens what is marked CLIENT or READER here, a token what is marked
READER, within what the token names. A method that is missing here is closed to clients. Read by ``transport.listen``;
a test compares the table with what the endpoints know. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from raylog.actors.naming import OFFSETS_TOPIC
from raylog.rpc import Permissions, ReadGrant, Role

READER, CLIENT, CLUSTER = Role.READER, Role.CLIENT, Role.CLUSTER

BROKER_METHODS: Final[Mapping[str, Role]] = {
    "metadata": READER,
    "init_producer_id": CLIENT,
    "find_coordinator": CLIENT,
    "create_topic": CLIENT,
    "delete_topic": CLIENT,
    "alter_topic_config": CLIENT,
    "create_partitions": CLIENT,
    "alter_partition_reassignments": CLIENT,
    "list_partition_reassignments": CLIENT,
    "elect_leaders": CLIENT,
    "stop_broker": CLIENT,
    "resume_broker": CLIENT,
    "raise_feature_level": CLIENT,
    "describe_cluster": CLIENT,
    "broker_metrics": CLUSTER,
    "voter_promise": CLUSTER,
    "voter_append": CLUSTER,
    "voter_read": CLUSTER,
    "voter_snapshot": CLUSTER,
}
REPLICA_METHODS: Final[Mapping[str, Role]] = {
    "fetch": READER,
    "fetch_near": READER,
    "list_offsets": READER,
    "offset_for_leader_epoch": READER,
    "produce": CLIENT,
    "delete_records": CLIENT,
    "replica_status": CLIENT,
    "replica_metrics": CLUSTER,
    "replica_fetch": CLUSTER,
}
INTERNAL_REPLICA_METHODS: Final[Mapping[str, Role]] = {
    **REPLICA_METHODS,
    # What is in it decides who has committed what: coordinators alone write it.
    "produce": CLUSTER,
    "delete_records": CLUSTER,
}
COORDINATOR_METHODS: Final[Mapping[str, Role]] = {
    "join_group": CLIENT,
    "sync_group": CLIENT,
    "heartbeat": CLIENT,
    "leave_group": CLIENT,
    "offset_commit": CLIENT,
    "offset_fetch": CLIENT,
    "list_groups": CLIENT,
    "describe_group": CLIENT,
    "delete_group": CLIENT,
    "coordinator_metrics": CLUSTER,
}
CONTROLLER_METHODS: Final[Mapping[str, Role]] = {
    # Clients reach the controller through a broker, which asks with the cluster's secret.
    "register_broker": CLUSTER,
    "register_replica": CLUSTER,
    "register_coordinator": CLUSTER,
    "heartbeat": CLUSTER,
    "alter_partition": CLUSTER,
    "resign_leader": CLUSTER,
    "allocate_producer_ids": CLUSTER,
    "ensure_coordinator": CLUSTER,
    "create_topic": CLUSTER,
    "delete_topic": CLUSTER,
    "alter_topic_config": CLUSTER,
    "create_partitions": CLUSTER,
    "alter_partition_reassignments": CLUSTER,
    "list_partition_reassignments": CLUSTER,
    "elect_leaders": CLUSTER,
    "stop_broker": CLUSTER,
    "resume_broker": CLUSTER,
    "raise_feature_level": CLUSTER,
    "describe_cluster": CLUSTER,
    "metadata": CLUSTER,
    "controller_metrics": CLUSTER,
}


def _covers(method: str, args: Any, grant: ReadGrant) -> bool:
    """Tell whether a token covers a READER method with these arguments; malformed ones are not covered."""
    if not isinstance(args, list) or not args:
        return False
    if method == "metadata":
        return isinstance(args[0], list) and grant.names(args[0])
    return len(args) >= 2 and grant.covers(args[0], args[1])


BROKER: Final = Permissions("broker", BROKER_METHODS, _covers)
REPLICA: Final = Permissions("replica", REPLICA_METHODS, _covers)
INTERNAL_REPLICA: Final = Permissions("replica of an internal topic", INTERNAL_REPLICA_METHODS, _covers)
COORDINATOR: Final = Permissions("group coordinator", COORDINATOR_METHODS)
CONTROLLER: Final = Permissions("controller", CONTROLLER_METHODS)


def of_replica(topic: str) -> Permissions:
    """Return the permissions of a replica of this topic."""
    return INTERNAL_REPLICA if topic == OFFSETS_TOPIC else REPLICA
