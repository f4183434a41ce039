"""Methods of the controller: only brokers, replicas and coordinators call it; brokers forward clients' requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.base.features import FIRST_LEVEL
from raylog.protocol.broker import BROKER, METADATA
from raylog.protocol.message import Empty, Int16, Int32, Int64, Message
from raylog.protocol.method import CLUSTER, Endpoint, Method


class RegisterBrokerRequest(Message, frozen=True):
    """Register a broker on this connection, which is its session from then on.

    ``broker``: -1 = a new directory, which gets an id. ``incarnation``: -1 = a new process, which gets one.
    ``cluster_id``: empty = the directory has none yet. The levels are the feature levels that its release knows.
    """

    broker: Int64
    incarnation: Int64
    node_id: str
    host: str
    port: Int64
    directory_id: str
    cluster_id: str
    lowest_level: Int64 = FIRST_LEVEL
    highest_level: Int64 = FIRST_LEVEL
    capacity: Sequence[Int64] = ()
    """Capacity of its machine and process, as ``core/metadata/capacity.py`` writes it."""


class RegisterBrokerReply(Message, frozen=True):
    """``snapshot``: records that add up to the metadata at ``version``; updates from there on follow."""

    incarnation: Int64
    cluster_id: str
    controller_epoch: Int32
    version: Int64
    snapshot: Sequence[Sequence[Any]]
    """Metadata records as ``core/metadata/records.py`` writes them."""
    broker: Int64


class ReplicaRequest(Message, frozen=True):
    """What requests of replicas begin with: the partition, and the replica with its incarnation."""

    topic_id: str
    topic: str
    partition: Int32
    broker: Int64
    incarnation: Int64


class RegisterReplicaRequest(ReplicaRequest, frozen=True):
    """Register a replica on this connection, which is its session from then on.

    ``incarnation``: -1 = a new process, which gets one. ``log_lost``: it begins with an empty log in place of one
    that was lost. ``log_id``: identifies the log. ``unsynced_lost``: the log may lack records that were acknowledged
    before they were on disk. ``end_cut``: its end was cut off at a start, or is known to be missing.
    """

    host: str
    port: Int64
    log_lost: bool
    log_id: str
    unsynced_lost: bool
    end_cut: bool = False


class RegisterReplicaReply(Message, frozen=True):
    """``state``: the partition's state as ``core/partition.py`` writes it.

    ``topic_config``: the topic's settings, which may have changed since the process was first made.
    ``cluster_config``: the same for the cluster's settings.
    """

    incarnation: Int64
    state: Sequence[Any]
    controller_epoch: Int32
    topic_config: Mapping[str, str]
    cluster_config: Mapping[str, str]


class RegisterCoordinatorRequest(Message, frozen=True):
    """Register a coordinator on this connection, which is its session from then on.

    ``kind``: ``group`` or ``transaction``. ``index``: the partition of its topic. ``epoch``: -1 = a new process, which
    gets one.
    """

    kind: str
    index: Int64
    epoch: Int32
    host: str
    port: Int64


class RegisterCoordinatorReply(Message, frozen=True):
    """The coordinator writes its partition with this producer id and epoch; they fence earlier incarnations.

    ``cluster_config``: the cluster's settings, which may have changed since the process was made.
    """

    epoch: Int32
    producer_id: Int64
    producer_epoch: Int16
    cluster_config: Mapping[str, str]


class ReplicaNote(Message, frozen=True):
    """What a broker reports about a replica on its directory.

    ``silent_ms``: how long ago it last showed that it runs; 0 = it runs. ``disk_hanging_ms``: as in a heartbeat.
    """

    incarnation: Int64
    silent_ms: Int64 = 0
    disk_hanging_ms: Int64 = 0


class SessionHeartbeatRequest(Message, frozen=True):
    """Keep the session of this connection alive, and those of the replicas that a broker vouches for.

    ``disk_hanging_ms``: how long a sync of the sender has hung; 0 = none hangs. ``vouched``: the incarnations of the
    replicas on the sender's directory that run; null = those of its last heartbeat on this connection. ``notes``: the
    replicas that have just fallen silent, and those whose disks hang. ``dozing``: how many replicas on the sender's
    directory are at rest, so that their processes are stopped. ``damage``: what was wrong with a replica's log; empty =
    nothing is known. ``is_mended``: the log was copied again since, or the file made again.
    """

    disk_hanging_ms: Int64 = 0
    vouched: Sequence[Int64] | None = None
    notes: Sequence[ReplicaNote] = ()
    dozing: Int64 = 0
    damage: str = ""
    is_mended: bool = False


class SessionHeartbeatReply(Message, frozen=True):
    """``absent``: incarnations that the sender vouches for and that have no session: each has to register again."""

    absent: Sequence[Int64] = ()


class IsrMember(Message, frozen=True):
    """A member of the ISR, in the incarnation that caught up with the leader."""

    broker: Int64
    incarnation: Int64


class AlterPartitionRequest(ReplicaRequest, frozen=True):
    """Change the ISR of a partition, as its leader, if the partition still is as the leader knows it.

    ``broker`` and ``incarnation``: the leader's. ``partition_epoch``: the version of the partition's state that the
    change is based on. ``drops_eligible``: the ELR is cleared, so that no replica outside the ISR may be elected.
    """

    leader_epoch: Int32
    partition_epoch: Int32
    isr: Sequence[IsrMember]
    drops_eligible: bool = False


class AlterPartitionReply(Message, frozen=True):
    """``state``: the partition's state after the change."""

    state: Sequence[Any]


class ResignLeaderRequest(ReplicaRequest, frozen=True):
    """Hand the leadership to another replica, because the leader's disk refuses appends or hangs."""

    leader_epoch: Int32


class SleepPartitionRequest(ReplicaRequest, frozen=True):
    """Put a partition to sleep, as its leader, if the partition still is as the leader knows it.

    ``point``: the log that all its replicas have on disk, as ``core/partition.py`` writes a sleep point.
    """

    leader_epoch: Int32
    partition_epoch: Int32
    point: Sequence[Int64]


class SleepCoordinatorRequest(Message, frozen=True):
    """End a coordinator whose groups are not used, as the coordinator; a request for it starts the next one.

    ``epoch``: the coordinator's. Its session ends if the controller agrees.
    """

    kind: str
    index: Int64
    epoch: Int32


class AllocateProducerIdsRequest(Message, frozen=True):
    """Get a block of producer ids to give out.

    ``count``: how many.
    """

    count: Int64


class AllocateProducerIdsReply(Message, frozen=True):
    """The ids from ``first`` on."""

    first: Int64
    count: Int64


class EnsureCoordinatorRequest(Message, frozen=True):
    """Start the coordinator of a partition if it does not run, and create its topic if there is none."""

    kind: str
    index: Int64


class ControllerMetricsRequest(Message, frozen=True):
    """Get metrics of the controller and of the cluster's topics."""


REGISTER_BROKER: Final = Method("register_broker", RegisterBrokerRequest, RegisterBrokerReply, CLUSTER)
REGISTER_REPLICA: Final = Method("register_replica", RegisterReplicaRequest, RegisterReplicaReply, CLUSTER)
REGISTER_COORDINATOR: Final = Method(
    "register_coordinator", RegisterCoordinatorRequest, RegisterCoordinatorReply, CLUSTER
)
SESSION_HEARTBEAT: Final = Method("heartbeat", SessionHeartbeatRequest, SessionHeartbeatReply, CLUSTER)
ALTER_PARTITION: Final = Method("alter_partition", AlterPartitionRequest, AlterPartitionReply, CLUSTER)
SLEEP_PARTITION: Final = Method("sleep_partition", SleepPartitionRequest, AlterPartitionReply, CLUSTER)
SLEEP_COORDINATOR: Final = Method("sleep_coordinator", SleepCoordinatorRequest, Empty, CLUSTER)
RESIGN_LEADER: Final = Method("resign_leader", ResignLeaderRequest, Empty, CLUSTER)
ALLOCATE_PRODUCER_IDS: Final = Method(
    "allocate_producer_ids", AllocateProducerIdsRequest, AllocateProducerIdsReply, CLUSTER
)
ENSURE_COORDINATOR: Final = Method("ensure_coordinator", EnsureCoordinatorRequest, Empty, CLUSTER)
CONTROLLER_METRICS: Final = Method("controller_metrics", ControllerMetricsRequest, list[Any], CLUSTER)

CONTROLLER: Final = Endpoint.of(
    "controller",
    (
        REGISTER_BROKER,
        REGISTER_REPLICA,
        REGISTER_COORDINATOR,
        SESSION_HEARTBEAT,
        ALTER_PARTITION,
        SLEEP_PARTITION,
        SLEEP_COORDINATOR,
        RESIGN_LEADER,
        ALLOCATE_PRODUCER_IDS,
        ENSURE_COORDINATOR,
        CONTROLLER_METRICS,
        Method(METADATA.name, METADATA.request, METADATA.reply, CLUSTER),
        *BROKER.forwarded(),
    ),
)
