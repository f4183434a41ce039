"""Administrative requests: any broker takes them, and forwards them to the controller, which replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.protocol.message import Description, Empty, Int32, Int64, Message, Names, Rows, Setting, Settings
from raylog.protocol.method import CLIENT, TOKEN, AnyMethod, Method, TokenScope


class CreateTopicRequest(Message, frozen=True):
    """Create a topic.

    ``num_partitions`` and ``replication_factor``: -1 = the cluster's default. ``assignments``: the brokers of each
    partition, the preferred leader in front, instead of these numbers. ``configs``: topic configuration by key.
    ``validate_only``: check, and create nothing. ``timeout_ms`` is not used.
    """

    topic: str
    num_partitions: Int64
    replication_factor: Int64
    assignments: Rows[Rows[Int64]] | None
    configs: Settings[Setting]
    validate_only: bool
    timeout_ms: Int64


class CreateTopicReply(Message, frozen=True):
    """``topic_id``: 32 hexadecimal digits; empty when the request was only validated."""

    topic_id: str


class DeleteTopicRequest(Message, frozen=True):
    """Delete a topic with its records."""

    topic: str


class AlterTopicConfigRequest(Message, frozen=True):
    """Change the configuration of a topic; keys that are in neither field stay.

    ``set``: values by key. ``delete``: keys that get their defaults back.
    """

    topic: str
    set: Settings[Setting]
    delete: Names


class AlterClusterConfigRequest(Message, frozen=True):
    """Alter settings of the cluster while it runs, all of them or none; keys that are in neither field stay.

    ``set``: values by key, which rank above those given at a start of the cluster. ``delete``: keys whose alteration
    ends, so that the value given at a start, or the default, is in force again. ``validate_only``: check, and alter
    nothing.
    """

    set: Settings[Setting]
    delete: Names
    validate_only: bool = False


class DescribeConfigsRequest(Message, frozen=True):
    """Describe every setting of a topic, with its origin.

    ``topic``: None = the settings of the cluster.
    """

    topic: str | None = None


class DescribedConfig(Message, frozen=True):
    """One setting, with the value in force.

    ``origin``: ``topic``, ``cluster`` or ``default`` for a topic's setting; ``altered`` (while the cluster ran),
    ``start`` (given at a start) or ``default`` for the cluster's. ``default``: the value without any configuration.
    ``legal``: the legal values, in words. ``change``: when a change takes effect: ``at once``; ``at the next start`` of
    the cluster; ``given at a start`` = it cannot be altered; ``until created`` = for topics that are created from then
    on; ``fixed`` = never, because these topics exist. ``next``: the value from the next start on; empty = the same.
    """

    name: str
    value: str
    origin: str
    default: str
    legal: str = ""
    meaning: str = ""
    change: str = ""
    next: str = ""


class CreatePartitionsRequest(Message, frozen=True):
    """Add partitions to a topic.

    ``count``: how many there are to be in all. ``assignments``: the brokers of each new partition; None = chosen.
    """

    topic: str
    count: Int64
    assignments: Rows[Rows[Int64]] | None


class ReassignablePartition(Message, frozen=True):
    """``replicas``: the brokers that are to hold the partition, the preferred leader in front; None = cancel."""

    topic: str
    partition: Int32
    replicas: Rows[Int64] | None


class AlterPartitionReassignmentsRequest(Message, frozen=True):
    """Begin to move partitions to other brokers, or cancel that: all of it, or nothing with an error.

    ``throttle``: bytes per second that each broker fetches for the replicas it gets; None = unchanged.
    """

    changes: Rows[ReassignablePartition]
    throttle: Int64 | None


class ListPartitionReassignmentsRequest(Message, frozen=True):
    """List the partitions on the move."""


class OngoingReassignment(Message, frozen=True):
    """One partition on the move: ``replicas`` has those to be added and those to be removed, too."""

    topic: str
    partition: Int32
    replicas: Sequence[Int64]
    adding_replicas: Sequence[Int64]
    removing_replicas: Sequence[Int64]
    isr: Sequence[Int64]
    leader: Int64


class ElectedPartition(Message, frozen=True):
    """A partition in a request to elect leaders."""

    topic: str
    partition: Int32


class ElectLeadersRequest(Message, frozen=True):
    """Elect preferred leaders, or give partitions without a leader one that may lack committed records.

    ``partitions``: None = all that another replica leads. ``unclean``: accept a replica that may lack committed
    records; the partitions have to be named then.
    """

    partitions: Rows[ElectedPartition] | None
    unclean: bool


class ElectionResult(Message, frozen=True):
    """``error_code`` 0: the partition has this leader in this epoch now."""

    topic: str
    partition: Int32
    error_code: Int64
    error_message: str
    leader: Int64
    leader_epoch: Int32


class StopBrokerRequest(Message, frozen=True):
    """Have a broker give its leaderships away and leave every ISR that has other members.

    ``force``: even where partitions are left without a leader or below ``min.insync.replicas``.
    """

    broker: Int64
    force: bool


class StopBrokerReply(Message, frozen=True):
    """``leaders_moved``: how many partitions the broker led. The other fields are lists of ``topic-partition``."""

    leaders_moved: Int64
    leaderless: Sequence[str]
    below_min_isr: Sequence[str]


class ResumeBrokerRequest(Message, frozen=True):
    """Let a broker that was stopped take part again."""

    broker: Int64


class RaiseFeatureLevelRequest(Message, frozen=True):
    """Raise the cluster's feature level; -1 = to the highest that every broker knows."""

    level: Int64


class RaiseFeatureLevelReply(Message, frozen=True):
    """The level now, and the level before."""

    level: Int64
    previous_level: Int64


class WakePartitionsRequest(Message, frozen=True):
    """Wake partitions that sleep; those that are awake stay so.

    ``partitions``: numbers; None = all partitions of the topic.
    """

    topic: str
    partitions: Rows[Int32] | None = None


class WakePartitionsReply(Message, frozen=True):
    """``slept``: how many of them slept."""

    slept: Int64


class DescribeClusterRequest(Message, frozen=True):
    """Describe the cluster as its controller sees it."""


class DescribedBroker(Description, frozen=True):
    """A broker that is registered."""

    broker: Int64
    node_id: str = ""
    host: str = ""
    port: Int64 = 0
    online: bool = True
    incarnation: Int64 = -1
    stopped: bool = False
    """Stopped on purpose."""
    feature_levels: Sequence[Int64] = (1, 1)
    """The lowest and the highest feature level that its release knows."""


class DescribedVoters(Description, frozen=True):
    """The metadata quorum: broker ids of its voters, and how many there are to be at most."""

    voters: Sequence[Int64] = ()
    max: Int64 = 0


class UncleanPartition(Message, frozen=True):
    """``topic-partition``, and the last epoch that began with an unclean election."""

    partition: str
    leader_epoch: Int32


class HangingDisk(Message, frozen=True):
    """``topic-partition`` and broker of a replica with a hanging sync, and for how long it has hung (ms)."""

    partition: str
    broker: Int64
    hanging_ms: Int64


class DamagedLog(Message, frozen=True):
    """``topic-partition`` and broker of a replica, what was wrong with its log, and whether that was mended since."""

    partition: str
    broker: Int64
    damage: str
    is_mended: bool


class LostLog(Message, frozen=True):
    """``topic-partition`` of a replica that lost its log, and its broker."""

    partition: str
    broker: Int64


class DescribeClusterReply(Description, frozen=True):
    """Lists of partitions hold ``topic-partition``; ``version`` counts the records of the metadata log."""

    cluster_id: str
    version: Int64
    config: Mapping[str, Any]
    controller_epoch: Int32 = -1
    metadata_voters: DescribedVoters = DescribedVoters()
    feature_level: Int64 = 1
    brokers: Sequence[DescribedBroker] = ()
    topics: Int64 = 0
    partitions: Int64 = 0
    sessions: Int64 = 0
    leaderless_partitions: Sequence[str] = ()
    under_replicated_partitions: Sequence[str] = ()
    reassigning_partitions: Sequence[str] = ()
    unclean_partitions: Sequence[UncleanPartition] = ()
    hanging_disks: Sequence[HangingDisk] = ()
    lost_logs: Sequence[LostLog] = ()
    damaged_logs: Sequence[DamagedLog] = ()


class EnsureInternalTopicRequest(Message, frozen=True):
    """Create an internal topic, of those that are created on first use, unless it exists.

    ``topic``: a name of :data:`raylog.core.controller.internal_topics.ON_FIRST_USE`.
    """

    topic: str


class EnsureInternalTopicReply(Message, frozen=True):
    """The topic as it is now; its partitions may not have leaders yet."""

    topic_id: str
    partitions: Int64


CREATE_TOPIC: Final = Method("create_topic", CreateTopicRequest, CreateTopicReply, CLIENT, forwarded=True)
DELETE_TOPIC: Final = Method("delete_topic", DeleteTopicRequest, Empty, CLIENT, forwarded=True)
ALTER_TOPIC_CONFIG: Final = Method("alter_topic_config", AlterTopicConfigRequest, Empty, CLIENT, forwarded=True)
DESCRIBE_CONFIGS: Final = Method(
    "describe_configs", DescribeConfigsRequest, list[DescribedConfig], CLIENT, forwarded=True
)
ALTER_CLUSTER_CONFIG: Final = Method(
    "alter_cluster_config",
    AlterClusterConfigRequest,
    list[DescribedConfig],
    CLIENT,
    forwarded=True,
)
CREATE_PARTITIONS: Final = Method("create_partitions", CreatePartitionsRequest, Empty, CLIENT, forwarded=True)
ALTER_PARTITION_REASSIGNMENTS: Final = Method(
    "alter_partition_reassignments", AlterPartitionReassignmentsRequest, Empty, CLIENT, forwarded=True
)
LIST_PARTITION_REASSIGNMENTS: Final = Method(
    "list_partition_reassignments",
    ListPartitionReassignmentsRequest,
    list[OngoingReassignment],
    CLIENT,
    forwarded=True,
)
ELECT_LEADERS: Final = Method("elect_leaders", ElectLeadersRequest, list[ElectionResult], CLIENT, forwarded=True)
STOP_BROKER: Final = Method("stop_broker", StopBrokerRequest, StopBrokerReply, CLIENT, forwarded=True)
RESUME_BROKER: Final = Method("resume_broker", ResumeBrokerRequest, Empty, CLIENT, forwarded=True)
RAISE_FEATURE_LEVEL: Final = Method(
    "raise_feature_level", RaiseFeatureLevelRequest, RaiseFeatureLevelReply, CLIENT, forwarded=True
)
DESCRIBE_CLUSTER: Final = Method(
    "describe_cluster", DescribeClusterRequest, DescribeClusterReply, CLIENT, forwarded=True
)

WAKE_PARTITIONS: Final = Method("wake_partitions", WakePartitionsRequest, WakePartitionsReply, CLIENT, forwarded=True)
ENSURE_INTERNAL_TOPIC: Final = Method(
    "ensure_internal_topic",
    EnsureInternalTopicRequest,
    EnsureInternalTopicReply,
    TOKEN,
    TokenScope.SCHEDULER,
    forwarded=True,
)

FORWARDED: Final[tuple[AnyMethod, ...]] = (
    CREATE_TOPIC,
    DELETE_TOPIC,
    ALTER_TOPIC_CONFIG,
    ALTER_CLUSTER_CONFIG,
    DESCRIBE_CONFIGS,
    CREATE_PARTITIONS,
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    STOP_BROKER,
    RESUME_BROKER,
    RAISE_FEATURE_LEVEL,
    WAKE_PARTITIONS,
    ENSURE_INTERNAL_TOPIC,
    DESCRIBE_CLUSTER,
)
