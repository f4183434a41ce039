"""What can happen to the controller, and what it asks its shell to do.

A *session* is one connection of a broker, a replica or a coordinator; the shell numbers sessions and requests, and
says when a session is heard from and when its connection breaks. Requests of clients come through brokers and need no
session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raylog.core.errors import RaylogError
from raylog.core.features import FIRST, LevelRange
from raylog.core.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.metadata.records import MetadataRecord
from raylog.core.partition import PartitionState

SessionId = int
"""One connection, numbered by the shell; never used twice within one life of the controller."""

RequestId = int
"""One request that waits for an answer, numbered by the shell."""

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEvent:
    """What every event has: ``cause``, its name in the story of a broken invariant, and the monotonic time in ms."""

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
    """A broker presents itself. ``incarnation`` -1 = a new life; ``cluster_id`` "" = its directory is new.

    ``broker`` -1 = its directory has no broker id yet: the answer gives it one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseFeatureLevelReceived(ClientRequest):
    """An administrator lets the cluster use what a newer release brings; -1 = the highest that every broker knows."""

    level: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRegistrationReceived(MemberRequest):
    """A replica presents itself. ``incarnation`` -1 = a new life.

    ``log_lost``: this life made its log anew (there was none, or it was damaged and set aside). ``log_id``: identity of
    the log, made with it; by it the controller knows a new log even when the life that made it died before it could
    tell, and an old one whose first registration was not answered. Empty = the log has none.
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
    """The machine went down under an earlier life that acknowledged before syncing: the end of its log may be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRegistrationReceived(MemberRequest):
    """A coordinator presents itself. ``epoch`` -1 = a new life."""

    kind: str
    index: int
    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeard(ControllerEvent):
    """Something came in on the session: its other end lives. ``disk_hanging_ms``: its disk does not finish a sync."""

    session: SessionId
    disk_hanging_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost(ControllerEvent):
    """The session's connection broke or was closed."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersShown(ControllerEvent):
    """The metadata quorum asks for this configuration: the identities of the voters' copies, by broker id."""

    voters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesGone(ControllerEvent):
    """Nobody is at these endpoints any more: connections are refused, or their nodes are dead."""

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
    """No replica outside that ISR may be elected any more: the leader shows what some of them may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderResigned(MemberRequest):
    """A partition's leader cannot write any more and asks that another in-sync replica leads."""

    topic_id: str
    partition: TopicPartition
    broker: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicReceived(ClientRequest):
    """A client wants a topic. -1 = the cluster's default; ``assignment`` names the brokers of each partition."""

    topic: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[BrokerId]] | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicReceived(ClientRequest):
    """A client wants a topic gone."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopicConfigReceived(ClientRequest):
    """A client wants settings of a topic changed (``set``) or back to their defaults (``delete``)."""

    topic: str
    set: Mapping[str, object] = field(default_factory=dict)
    delete: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsReceived(ClientRequest):
    """A client wants a topic to have ``total`` partitions; ``assignment`` names the brokers of each new one."""

    topic: str
    total: int
    assignment: Sequence[Sequence[BrokerId]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignmentsReceived(ClientRequest):
    """A client wants partitions on other brokers: (topic, partition, brokers), None instead of brokers to cancel.

    All of it is done or nothing. ``throttle`` is the new ``follower.replication.throttled.rate``; None = as it is.
    """

    changes: Sequence[tuple[str, int, Sequence[BrokerId] | None]]
    throttle: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReassignmentsReceived(ClientRequest):
    """Somebody wants to know which partitions are being moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersReceived(ClientRequest):
    """A client wants the preferred replicas to lead, or partitions without a leader to be led at any price.

    ``partitions`` None = all of them; ``unclean`` allows replicas that may lack committed records.
    """

    partitions: Sequence[TopicPartition] | None = None
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBrokerReceived(ClientRequest):
    """A client wants a broker to give everything away before it is ended; ``force``: whatever comes of it."""

    broker: BrokerId
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeBrokerReceived(ClientRequest):
    """A client wants a broker that was stopped to run again."""

    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRequested(ClientRequest):
    """A broker wants producer ids to hand out."""

    count: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequested(ClientRequest):
    """A broker wants a coordinator to run, because a client asked for it."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterReceived(ClientRequest):
    """Somebody wants to know how the cluster is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(ControllerEvent):
    """Time passed. The shell sends one at least four times within the session timeout."""


Event = (
    BrokerRegistrationReceived
    | ReplicaRegistrationReceived
    | CoordinatorRegistrationReceived
    | SessionHeard
    | SessionLost
    | IsrChangeReceived
    | LeaderResigned
    | CreateTopicReceived
    | DeleteTopicReceived
    | AlterTopicConfigReceived
    | CreatePartitionsReceived
    | AlterReassignmentsReceived
    | ListReassignmentsReceived
    | ElectLeadersReceived
    | StopBrokerReceived
    | ResumeBrokerReceived
    | RaiseFeatureLevelReceived
    | ProducerIdsRequested
    | CoordinatorRequested
    | DescribeClusterReceived
    | VotersShown
    | PlacesGone
    | Tick
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEffect:
    """What every effect has: the ``cause`` of the event that it follows from."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRecords(ControllerEffect):
    """Append the records to the metadata log. The only effect that is ever in ``now``; all others follow its sync.

    When it fails, the controller ends: its image is ahead of the log, and its next life starts from the log.
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
class StopReplica(ControllerEffect):
    """Tell a replica to end for good: its topic is gone. The controller has forgotten the session already."""

    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession(ControllerEffect):
    """Close a connection: its other end was silent for too long, or was superseded by a newer life or connection."""

    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCoordinator(ControllerEffect):
    """Make sure that this coordinator's process runs; it will register."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantVoters(ControllerEffect):
    """Have these brokers keep the metadata log. The quorum changes its voters one by one, when they are up to date."""

    voters: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn(ControllerEffect):
    """Tell the operator something: the shell logs it."""

    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(ControllerEffect):
    """Answer a request with wire values. ``warning`` is for the operator: the shell logs it."""

    request: RequestId
    result: list[object] | dict[str, object]
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(ControllerEffect):
    """Answer a request with an error."""

    request: RequestId
    error: RaylogError


Effect = (
    WriteRecords
    | PublishMetadata
    | SendPartitionState
    | StopReplica
    | CloseSession
    | StartCoordinator
    | WantVoters
    | Warn
    | Reply
    | Refuse
)
