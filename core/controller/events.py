"""Events and effects of the controller. A request is the message of its page (``core/received.py``).

A *session* is one connection of a broker, a replica or a coordinator. The shell numbers sessions and requests, and
reports broken connections. Requests of clients come through brokers and need no session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.base.ids import BrokerId, Incarnation
from raylog.core.decision import Refuse, Reply
from raylog.core.metadata.records import MetadataRecord
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.protocol.admin import (
    AlterClusterConfigRequest,
    AlterPartitionReassignmentsRequest,
    AlterTopicConfigRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
    EnsureInternalTopicRequest,
    ListPartitionReassignmentsRequest,
    RaiseFeatureLevelRequest,
    ResumeBrokerRequest,
    StopBrokerRequest,
    WakePartitionsRequest,
)
from raylog.protocol.controller import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    EnsureCoordinatorRequest,
    RegisterBrokerRequest,
    RegisterCoordinatorRequest,
    RegisterReplicaRequest,
    ResignLeaderRequest,
    SessionHeartbeatRequest,
    SleepCoordinatorRequest,
    SleepPartitionRequest,
)

SessionId = int
"""One connection, numbered by the shell; never reused within one incarnation of the controller."""

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerEvent:
    """Common fields of other events: ``cause``, its name in the story of a broken invariant, and the time in ms."""

    cause: str
    now_ms: int


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
class RestRequested(ControllerEvent):
    """The cluster is about to stop: all partitions that can shall sleep, so that the next start finds them asleep.

    Those that otherwise never sleep wake again after the start, or when no stop has followed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(ControllerEvent):
    """Time passed. The shell sends one at least four times within the session timeout."""


MemberRequest = (
    RegisterBrokerRequest
    | RegisterReplicaRequest
    | RegisterCoordinatorRequest
    | SleepCoordinatorRequest
    | AlterPartitionRequest
    | ResignLeaderRequest
    | SleepPartitionRequest
)
"""Requests that a broker, a replica or a coordinator makes on its own session."""
ClientRequest = (
    CreateTopicRequest
    | DeleteTopicRequest
    | AlterTopicConfigRequest
    | AlterClusterConfigRequest
    | DescribeConfigsRequest
    | CreatePartitionsRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | ElectLeadersRequest
    | StopBrokerRequest
    | ResumeBrokerRequest
    | RaiseFeatureLevelRequest
    | WakePartitionsRequest
    | EnsureInternalTopicRequest
    | DescribeClusterRequest
    | AllocateProducerIdsRequest
    | EnsureCoordinatorRequest
)
"""Requests that brokers forward, or make for themselves."""
ControllerRequest = MemberRequest | ClientRequest | SessionHeartbeatRequest
"""What the machine replies to or refuses; but the shell answers heartbeats."""
Event = Received[ControllerRequest] | SessionLost | RestRequested | VotersShown | EndpointsDead | Tick

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
