"""What Admin returns about a cluster, its topics and its groups: plain frozen values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from raylog.client.cluster.metadata import BrokerInfo, PartitionInfo, TopicInfo
from raylog.core.ids import TopicPartition
from raylog.protocol.admin import DescribeClusterReply

__all__ = [
    "BrokerInfo",
    "ClusterDescription",
    "ConfigEntry",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "OffsetOfDeletedTopic",
    "PartitionInfo",
    "PendingOffset",
    "StoppedBroker",
    "TopicDescription",
]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic. `config` holds the keys that were set for it; the others have their defaults."""

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[PartitionInfo, ...]
    config: dict[str, Any]

    @property
    def replication_factor(self) -> int:
        """Replicas of each partition."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting, with the value that counts. `origin`: "topic" or "cluster", where it was set, else "default".

    "cluster" is what Kafka calls a broker's configuration. The cluster's own settings have "altered" (while it ran),
    "start" (given at a start) or "default". `default` is the value without any configuration, `legal` and `meaning` are
    in words.
    """

    name: str
    value: str
    origin: str
    default: str
    legal: str
    meaning: str
    change: str = ""
    """When a change counts: "at once"; "at the next start" of the cluster; only "given at a start"; "until created": of
    topics that are created from then on; "fixed": these exist."""
    next: str = ""
    """The value from the next start of the cluster on; empty = the same."""

    @property
    def is_default(self) -> bool:
        """Whether it was set nowhere."""
        return self.origin == "default"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster as its controller sees it. `details` is the whole answer, for display.

    `stopped_brokers` were stopped on purpose; those without a running process are in `offline_brokers` too.
    """

    cluster_id: str
    controller_epoch: int
    brokers: tuple[BrokerInfo, ...]
    offline_brokers: tuple[BrokerInfo, ...]
    details: dict[str, Any] = field(default_factory=dict)
    stopped_brokers: tuple[BrokerInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class StoppedBroker:
    """Result of stopping a broker: how many leaders moved, and what is degraded until it is back.

    `leaderless` partitions have no leader, those in `below_minimum` refuse writes with `acks=all`; both are empty
    unless the stop was forced.
    """

    broker: int
    leaders_moved: int
    leaderless: tuple[str, ...] = ()
    below_minimum: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group in a list."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"
    """`classic` or `consumer`: which protocol its members use, or used last."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group; `assignment` is what its leader, or the coordinator, gave it.

    Those behind it are of the consumer protocol: epoch (-2: a static member that is away) and state, what it
    subscribes to, what it has to give up, and what it is to have.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    assignment: tuple[TopicPartition, ...]
    client_host: str = ""
    """Where its last join came from; "" = not known."""
    member_epoch: int = -1
    member_state: str = ""
    topics: tuple[str, ...] = ()
    revoking: tuple[TopicPartition, ...] = ()
    target: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """An offset that takes effect when the transaction of this producer commits."""

    partition: TopicPartition
    offset: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetOfDeletedTopic:
    """A committed offset of a topic that was deleted; one of that name may have been created since, with another id."""

    partition: TopicPartition
    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group, its members, its committed offsets, and those of transactions that are open.

    `offsets` are those of topics that exist, by their ids. `coordinator` is where it answers, as host:port.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str | None
    generation: int
    leader: str | None
    members: tuple[MemberDescription, ...]
    offsets: dict[TopicPartition, int]
    pending_offsets: tuple[PendingOffset, ...] = ()
    coordinator: str = ""
    group_type: str = "classic"
    """`classic` or `consumer`; then `generation` is the group's epoch, and `protocol` its assignor."""
    target_epoch: int = -1
    """The epoch of the target that the coordinator leads the members to; -1 in a classic group."""
    deleted_offsets: tuple[OffsetOfDeletedTopic, ...] = ()
    """Offsets of topics that were deleted; no member reads from them."""


def describe_topic(info: TopicInfo) -> TopicDescription:
    """A topic's public description, from its metadata."""
    return TopicDescription(info.name, info.topic_id, info.internal, info.partitions, dict(info.config))


def describe_cluster(reply: DescribeClusterReply) -> ClusterDescription:
    """The cluster's public description, from the controller's answer."""
    online: list[BrokerInfo] = []
    offline: list[BrokerInfo] = []
    stopped: list[BrokerInfo] = []
    for row in reply.brokers:
        broker = BrokerInfo(row.broker, row.host, row.port, row.node_id)
        (online if row.online else offline).append(broker)
        if row.stopped:
            stopped.append(broker)
    return ClusterDescription(
        reply.cluster_id,
        reply.controller_epoch,
        tuple(online),
        tuple(offline),
        msgspec.to_builtins(reply),
        tuple(stopped),
    )
