"""What Admin returns about a cluster, its topics and its groups: plain frozen values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from raylog.base.ids import TopicPartition
from raylog.client.cluster.metadata import BrokerInfo, PartitionInfo, TopicInfo
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
    """One topic. `config` has only the keys that were set for it; all others have their defaults."""

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
    """One setting and its effective value. `origin`: where a topic's setting was set ("topic", "cluster" or "default").

    "cluster" is what Kafka calls a broker's configuration. The origin of a setting of the cluster itself is "altered"
    (while it ran), "start" (given at a start) or "default". `default` is the value without any configuration; `legal`
    and `meaning` describe the setting in words.
    """

    name: str
    value: str
    origin: str
    default: str
    legal: str
    meaning: str
    change: str = ""
    """When a change takes effect: "at once"; "at the next start" of the cluster; "given at a start": only there;
    "until created": for topics that are created later; "fixed": never, they exist."""
    next: str = ""
    """The value after the next start of the cluster; empty = the same."""

    @property
    def is_default(self) -> bool:
        """Whether it was not set anywhere."""
        return self.origin == "default"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster as its controller sees it. `details` is the whole answer, for display.

    `brokers` are online. `stopped_brokers` were stopped on purpose; each is also in `offline_brokers`, or in `brokers`
    while its process still runs.
    """

    cluster_id: str
    controller_epoch: int
    brokers: tuple[BrokerInfo, ...]
    offline_brokers: tuple[BrokerInfo, ...]
    details: dict[str, Any] = field(default_factory=dict)
    stopped_brokers: tuple[BrokerInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class StoppedBroker:
    """Result of stopping a broker: how many leaders moved, and which partitions suffer until it is back.

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
    """One member of a group; `assignment` are the partitions that it has now.

    The fields from `member_epoch` on are set in groups of the consumer protocol alone (KIP-848): the member epoch (-2 =
    a static member that left for a while), its state, the topics it subscribes to, the partitions it has still to
    revoke, and its target assignment.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    assignment: tuple[TopicPartition, ...]
    client_host: str = ""
    """The host that sent its last join; "" = not known."""
    member_epoch: int = -1
    member_state: str = ""
    topics: tuple[str, ...] = ()
    revoking: tuple[TopicPartition, ...] = ()
    target: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """An offset that a producer has added to its open transaction; it takes effect when that commits."""

    partition: TopicPartition
    offset: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetOfDeletedTopic:
    """A committed offset of a deleted topic. A newer topic may have the same name, with another id."""

    partition: TopicPartition
    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group: its members, its committed offsets, and the pending offsets of open transactions.

    `offsets` are only of topics that still exist (compared by topic id). `coordinator` is its coordinator's host:port.
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
    """`classic` or `consumer`. In a `consumer` group `generation` is the group epoch, and `protocol` the assignor."""
    target_epoch: int = -1
    """The epoch of the target assignment, which the members move to; -1 in a classic group."""
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
