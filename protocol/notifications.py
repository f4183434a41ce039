"""Notifications of the controller on the connections of registered brokers and replicas.

They have no reply. A session that misses one is closed, and its member registers again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.protocol.message import Empty, Int64, Message
from raylog.protocol.method import CLUSTER, Endpoint, Method


class MetadataUpdate(Message, frozen=True):
    """Apply records of the metadata log that are committed now.

    ``from_version``: the metadata's version before the first of them; another version than the receiver's = a gap.
    """

    from_version: Int64
    records: Sequence[Sequence[Any]]
    """As ``core/metadata/records.py`` writes them."""


class PartitionStateUpdate(Message, frozen=True):
    """Apply a partition's committed state: leader, ISR, epochs, endpoints.

    ``incarnation``: that of the receiving replica. ``state``: as ``core/partition.py`` writes it.
    """

    incarnation: Int64
    state: Sequence[Any]


class StopReplica(Message, frozen=True):
    """Stop serving: the topic was deleted, or a reassignment took the replica away."""

    reason: str


class FallAsleep(Message, frozen=True):
    """Propose soon that the partition sleeps, if this replica leads and nothing was used for ``idle_ms``.

    ``for_stop``: the cluster is about to stop, so that even partitions sleep that otherwise never do.
    """

    idle_ms: Int64 = 0
    for_stop: bool = False


class ClusterConfigUpdate(Message, frozen=True):
    """Apply the cluster's settings, all of them: some were altered."""

    config: Mapping[str, str]


METADATA_UPDATE: Final = Method("metadata_update", MetadataUpdate, Empty, CLUSTER, notification=True)
PARTITION_STATE: Final = Method("partition_state", PartitionStateUpdate, Empty, CLUSTER, notification=True)
STOP_REPLICA: Final = Method("stop_replica", StopReplica, Empty, CLUSTER, notification=True)

FALL_ASLEEP: Final = Method("fall_asleep", FallAsleep, Empty, CLUSTER, notification=True)

CLUSTER_CONFIG: Final = Method("cluster_config", ClusterConfigUpdate, Empty, CLUSTER, notification=True)

BROKER_SESSION: Final = Endpoint.of("broker's session", (METADATA_UPDATE,))
REPLICA_SESSION: Final = Endpoint.of("replica's session", (PARTITION_STATE, STOP_REPLICA, FALL_ASLEEP))
COORDINATOR_SESSION: Final = Endpoint.of("coordinator's session", (FALL_ASLEEP, CLUSTER_CONFIG))
