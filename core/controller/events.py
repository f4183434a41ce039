"""Events and effects of the controller.

A *session* is one connection of a broker, a replica or a coordinator. The shell numbers sessions and requests, and
reports heartbeats and broken connections. Requests of clients come through brokers and need no session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raylog.base.features import FIRST, LevelRange
from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.decision import Refuse, Reply, RequestId
from raylog.core.metadata.records import MetadataRecord
from raylog.core.partition import PartitionState

SessionId = int
"""One connection, numbered by the shell; never reused within one incarnation of the controller."""

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEvent:
    """Common fields of events: ``cause``, its name in the story of a broken invariant, and the monotonic time in ms."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest(ControllerEvent):
    """A request that a broker forwards, or makes for itself; it is answered by :class:`Reply` or :class:`Refuse`."""

    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRequest(ClientRequest):
    """A request that a broker, a replica or a coordinator makes on its own session."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationReceived(MemberRequest):
    """A broker registers. ``incarnation`` -1 = a new incarnation; ``cluster_id`` "" = its directory is new.

    ``broker`` -1 = its directory has no broker id yet: the answer assigns one.
    """

    broker: BrokerId
    incarnation: Incarnation
    node_id: str
    host: str
    port: int
    directory_id: str
    cluster_id: str = ""
    levels: LevelRange = FIRST
    """The feature levels that the broker's release knows."""
    capacity: tuple[int, ...] = ()
    """A :class:`~raylog.core.metadata.capacity.Capacity` as a row: what its machine and process have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseFeatureLevelReceived(ClientRequest):
    """Raise-feature-level request from an administrator; -1 = the highest level that every broker knows."""

    level: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRegistrationReceived(MemberRequest):
    """A replica registers. ``incarnation`` -1 = a new incarnation.

    ``log_lost``: this incarnation created a new log (there was none, or it was damaged and set aside). ``log_id``:
    identity of the log, created with it. It shows the controller a new log whose creator died before it could report
    the loss, and an old log whose first registration was not answered. Empty = the log has none.
    """

    topic_id: str
    partition: TopicPartition
    broker: BrokerId
    incarnation: Incarnation
    host: str
    port: int
    log_lost: bool = False
    log_id: str = ""
    unsynced_lost: bool = False
    """The machine went down when an incarnation had acknowledged before syncing: the log's tail may be lost."""
    end_cut: bool = False
    """The log's end was cut off as a torn write, or committed records are known to be missing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRegistrationReceived(MemberRequest):
    """A coordinator registers. ``epoch`` -1 = a new incarnation."""

    kind: str
    index: int
    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSleepProposed(MemberRequest):
    """The coordinator of this session, in this epoch, proposes to end: its groups are not used."""

    kind: str
    index: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeartbeat(ControllerEvent):
    """Heartbeat: data arrived on the session. ``disk_hanging_ms``: how long its disk has not finished a sync.

    A broker states with it which of its replicas run. ``vouched``: their incarnations; None = the same as in the
    previous statement of this session. ``notes``: (incarnation, milliseconds of silence, milliseconds of a hanging
    disk) of some of them. ``dozing``: how many of its replicas doze. ``damage``: what was wrong with a replica's log,
    and whether it ``is_mended``.
    """

    session: SessionId
    disk_hanging_ms: int = 0
    vouched: Sequence[int] | None = None
    notes: Sequence[tuple[int, int, int]] = ()
    dozing: int = 0
    damage: str = ""
    is_mended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost(ControllerEvent):
    """The session's connection broke or was closed."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersShown(ControllerEvent):
    """The metadata quorum requests this configuration: the identities of the voters' copies, by broker id."""

    voters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointsDead(ControllerEvent):
    """These endpoints are dead: connections are refused, or their nodes are dead."""

    endpoints: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChangeReceived(MemberRequest):
    """A partition's leader proposes another ISR, if leader epoch and partition epoch are still the ones it knows."""

    topic_id: str
    partition: TopicPartition
    broker: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, Incarnation], ...]
    drops_eligible: bool = False
    """No replica outside that ISR may be elected any more: the leader exposes records that some of them may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderResigned(MemberRequest):
    """A partition's leader cannot write any more and requests that another in-sync replica leads."""

    topic_id: str
    partition: TopicPartition
    broker: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepProposed(MemberRequest):
    """A partition's leader proposes that the partition sleeps, on the same condition as :class:`IsrChangeReceived`.

    ``point`` is a :class:`~raylog.core.partition.SleepPoint` as a row.
    """

    topic_id: str
    partition: TopicPartition
    broker: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    point: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRequested(ControllerEvent):
    """The cluster is about to stop: all partitions that can shall sleep, so that the next start finds them asleep.

    Those that otherwise never sleep wake again after the start, or when no stop has followed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeRequested(ClientRequest):
    """Wake-partitions request, from a broker that has a request for them or from an administrator.

    ``partitions``: their numbers; None = all of the topic.
    """

    topic: str
    partitions: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicReceived(ClientRequest):
    """Create-topic request. -1 = the cluster's default; ``assignment`` names the brokers of each partition."""

    topic: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[BrokerId]] | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicReceived(ClientRequest):
    """Delete-topic request."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopicConfigReceived(ClientRequest):
    """Alter-config request for a topic: change settings (``set``) or restore their defaults (``delete``)."""

    topic: str
    set: Mapping[str, object] = field(default_factory=dict)
    delete: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClusterConfigReceived(ClientRequest):
    """Alter-config request for the cluster: alter settings (``set``) or end their alteration (``delete``)."""

    set: Mapping[str, object] = field(default_factory=dict)
    delete: Sequence[str] = ()
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsReceived(ClientRequest):
    """Describe-configs request: every setting of a topic and its origin; None = of the cluster."""

    topic: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsReceived(ClientRequest):
    """Create-partitions request: ``total`` partitions; ``assignment`` names the brokers of each new one."""

    topic: str
    total: int
    assignment: Sequence[Sequence[BrokerId]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignmentsReceived(ClientRequest):
    """Reassign-partitions request: (topic, partition, brokers), None instead of brokers to cancel.

    All or none of it is done. ``throttle`` is the new ``follower.replication.throttled.rate``; None = unchanged.
    """

    changes: Sequence[tuple[str, int, Sequence[BrokerId] | None]]
    throttle: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReassignmentsReceived(ClientRequest):
    """List-reassignments request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersReceived(ClientRequest):
    """Elect-leaders request: preferred replicas, or any replica for partitions without a leader.

    ``partitions`` None = all of them; ``unclean`` allows replicas that may lack committed records.
    """

    partitions: Sequence[TopicPartition] | None = None
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBrokerReceived(ClientRequest):
    """Stop-broker request: move its leaderships away before it ends; ``force``: even if partitions become offline."""

    broker: BrokerId
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeBrokerReceived(ClientRequest):
    """Resume-broker request for a broker that was stopped."""

    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRequested(ClientRequest):
    """A broker requests a block of producer ids."""

    count: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequested(ClientRequest):
    """A broker requests that a coordinator runs, because a client needs it."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopicRequested(ClientRequest):
    """A client or a leader role needs an internal topic that is created on first use."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterReceived(ClientRequest):
    """Describe-cluster request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(ControllerEvent):
    """Time passed. The shell sends one at least four times within the session timeout."""


ClientEvent = (
    WakeRequested
    | CreateTopicReceived
    | DeleteTopicReceived
    | AlterTopicConfigReceived
    | AlterClusterConfigReceived
    | DescribeConfigsReceived
    | CreatePartitionsReceived
    | AlterReassignmentsReceived
    | ListReassignmentsReceived
    | ElectLeadersReceived
    | StopBrokerReceived
    | ResumeBrokerReceived
    | RaiseFeatureLevelReceived
    | ProducerIdsRequested
    | CoordinatorRequested
    | InternalTopicRequested
    | DescribeClusterReceived
)
"""Requests that brokers forward, or make for themselves."""
Event = (
    BrokerRegistrationReceived
    | ReplicaRegistrationReceived
    | CoordinatorRegistrationReceived
    | CoordinatorSleepProposed
    | SessionHeartbeat
    | SessionLost
    | IsrChangeReceived
    | LeaderResigned
    | SleepProposed
    | RestRequested
    | VotersShown
    | EndpointsDead
    | Tick
    | ClientEvent
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEffect:
    """Common field of effects: the ``cause`` of the event that they follow from."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRecords(ControllerEffect):
    """Append the records to the metadata log. The only effect in ``now``; all others wait for its sync.

    When it fails, the controller ends: its image is ahead of the log, and the next incarnation starts from the log.
    """

    records: tuple[MetadataRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishMetadata(ControllerEffect):
    """Send the records to these broker sessions; they follow version ``from_version`` of the image."""

    sessions: tuple[SessionId, ...]
    from_version: int
    records: tuple[MetadataRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPartitionState(ControllerEffect):
    """Send a partition's state to one of its replicas, addressed to that incarnation."""

    session: SessionId
    incarnation: Incarnation
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class SendClusterConfig(ControllerEffect):
    """Send the cluster's settings in force to a coordinator."""

    session: SessionId
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplica(ControllerEffect):
    """Stop a replica permanently: its topic is deleted. The controller has already removed the session."""

    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSleep(ControllerEffect):
    """Have the leader on this session propose that its partition sleeps, if it was not used for ``idle_ms``.

    A coordinator that is not in use proposes its own end. ``for_stop``: the leader proposes it even for a partition
    that otherwise never sleeps.
    """

    session: SessionId
    idle_ms: int
    for_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession(ControllerEffect):
    """Close a connection: it timed out, or a newer incarnation or connection superseded it."""

    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCoordinator(ControllerEffect):
    """Make sure that this coordinator's process runs; it will register."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCoordinator(ControllerEffect):
    """End this coordinator's process permanently; a later :class:`StartCoordinator` waits until it has ended."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantVoters(ControllerEffect):
    """Set the brokers that keep the metadata log. The quorum changes one voter at a time, once it is up to date."""

    voters: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn(ControllerEffect):
    """Warning for the operator: the shell logs it."""

    warning: str


Effect = (
    WriteRecords
    | PublishMetadata
    | SendPartitionState
    | SendClusterConfig
    | StopReplica
    | RequestSleep
    | CloseSession
    | StartCoordinator
    | EndCoordinator
    | WantVoters
    | Warn
    | Reply
    | Refuse
)
