"""What can happen to the controller, and what it asks its shell to do.

A *session* is one connection of a broker, a replica or a coordinator; the shell numbers sessions and requests, and
says when a session is heard from and when its connection breaks. Requests of clients come through brokers and need no
session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raylog.core.controller.records import MetadataRecord
from raylog.core.errors import RaylogError
from raylog.core.features import FIRST, LevelRange
from raylog.core.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.replication.state import PartitionState

SessionId = int
"""One connection, numbered by the shell; never used twice within one life of the controller."""

RequestId = int
"""One request that waits for an answer, numbered by the shell."""

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationReceived:
    """A broker presents itself. ``incarnation`` -1 = a new life; ``cluster_id`` "" = its directory is new.

    ``broker`` -1 = its directory has no broker id yet: the answer gives it one.
    """

    cause: str
    now_ms: int
    session: SessionId
    request: RequestId
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
class RaiseFeatureLevelReceived:
    """An administrator lets the cluster use what a newer release brings; -1 = the highest that every broker knows."""

    cause: str
    now_ms: int
    request: RequestId
    level: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRegistrationReceived:
    """A replica presents itself. ``incarnation`` -1 = a new life.

    ``log_lost``: this life made its log anew (there was none, or it was damaged and set aside). ``log_id``: identity of
    the log, made with it; by it the controller knows a new log even when the life that made it died before it could
    tell, and an old one whose first registration was not answered. Empty = the log has none.
    """

    cause: str
    now_ms: int
    session: SessionId
    request: RequestId
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
class CoordinatorRegistrationReceived:
    """A coordinator presents itself. ``epoch`` -1 = a new life."""

    cause: str
    now_ms: int
    session: SessionId
    request: RequestId
    kind: str
    index: int
    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHeard:
    """Something came in on the session: its other end lives. ``disk_hanging_ms``: its disk does not finish a sync."""

    cause: str
    now_ms: int
    session: SessionId
    disk_hanging_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """The session's connection broke or was closed."""

    cause: str
    now_ms: int
    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersShown:
    """The metadata quorum asks for this configuration: the identities of the voters' copies, by broker id."""

    cause: str
    now_ms: int
    voters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesGone:
    """Nobody is at these endpoints any more: connections are refused, or their nodes are dead."""

    cause: str
    now_ms: int
    endpoints: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChangeReceived:
    """A partition's leader proposes another ISR, if leader epoch and partition epoch are still the ones it knows."""

    cause: str
    now_ms: int
    session: SessionId
    request: RequestId
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
class LeaderResigned:
    """A partition's leader cannot write any more and asks that another in-sync replica leads."""

    cause: str
    now_ms: int
    session: SessionId
    request: RequestId
    topic_id: str
    partition: TopicPartition
    broker: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicReceived:
    """A client wants a topic. -1 = the cluster's default; ``assignment`` names the brokers of each partition."""

    cause: str
    now_ms: int
    request: RequestId
    topic: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[BrokerId]] | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicReceived:
    """A client wants a topic gone."""

    cause: str
    now_ms: int
    request: RequestId
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopicConfigReceived:
    """A client wants settings of a topic changed (``set``) or back to their defaults (``delete``)."""

    cause: str
    now_ms: int
    request: RequestId
    topic: str
    set: Mapping[str, object] = field(default_factory=dict)
    delete: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsReceived:
    """A client wants a topic to have ``total`` partitions; ``assignment`` names the brokers of each new one."""

    cause: str
    now_ms: int
    request: RequestId
    topic: str
    total: int
    assignment: Sequence[Sequence[BrokerId]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignmentsReceived:
    """A client wants partitions on other brokers: (topic, partition, brokers), None instead of brokers to cancel.

    All of it is done or nothing. ``throttle`` is the new ``follower.replication.throttled.rate``; None = as it is.
    """

    cause: str
    now_ms: int
    request: RequestId
    changes: Sequence[tuple[str, int, Sequence[BrokerId] | None]]
    throttle: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReassignmentsReceived:
    """Somebody wants to know which partitions are being moved."""

    cause: str
    now_ms: int
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersReceived:
    """A client wants the preferred replicas to lead, or partitions without a leader to be led at any price.

    ``partitions`` None = all of them; ``unclean`` allows replicas that may lack committed records.
    """

    cause: str
    now_ms: int
    request: RequestId
    partitions: Sequence[TopicPartition] | None = None
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBrokerReceived:
    """A client wants a broker to give everything away before it is ended; ``force``: whatever comes of it."""

    cause: str
    now_ms: int
    request: RequestId
    broker: BrokerId
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeBrokerReceived:
    """A client wants a broker that was stopped to run again."""

    cause: str
    now_ms: int
    request: RequestId
    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRequested:
    """A broker wants producer ids to hand out."""

    cause: str
    now_ms: int
    request: RequestId
    count: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequested:
    """A broker wants a coordinator to run, because a client asked for it."""

    cause: str
    now_ms: int
    request: RequestId
    kind: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterReceived:
    """Somebody wants to know how the cluster is."""

    cause: str
    now_ms: int
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed. The shell sends one at least four times within the session timeout."""

    cause: str
    now_ms: int


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
class WriteRecords:
    """Append the records to the metadata log. The only effect that is ever in ``now``; all others follow its sync.

    When it fails, the controller ends: its image is ahead of the log, and its next life starts from the log.
    """

    cause: str
    records: tuple[MetadataRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishMetadata:
    """Send the records to these broker sessions; they follow version ``from_version`` of the image."""

    cause: str
    sessions: tuple[SessionId, ...]
    from_version: int
    records: tuple[MetadataRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPartitionState:
    """Send a partition's state to one of its replicas, addressed to that incarnation."""

    cause: str
    session: SessionId
    incarnation: Incarnation
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplica:
    """Tell a replica to end for good: its topic is gone. The controller has forgotten the session already."""

    cause: str
    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession:
    """Close a connection: its other end was silent for too long, or was superseded by a newer life or connection."""

    cause: str
    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCoordinator:
    """Make sure that this coordinator's process runs; it will register."""

    cause: str
    kind: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WantVoters:
    """Have these brokers keep the metadata log. The quorum changes its voters one by one, when they are up to date."""

    cause: str
    voters: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Tell the operator something: the shell logs it."""

    cause: str
    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer a request with wire values. ``warning`` is for the operator: the shell logs it."""

    cause: str
    request: RequestId
    result: list[object] | dict[str, object]
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Answer a request with an error."""

    cause: str
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
