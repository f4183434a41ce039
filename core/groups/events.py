"""Events and effects of a group coordinator.

The shell (an actor, or the simulator) turns requests into events in arrival order and carries effects out. ``request``
is the shell's number for a request, unique per incarnation; every request event is answered by exactly one
:class:`Reply` or :class:`Refuse` with that number, at once or in a later step, unless the shell reported a closed
connection (:class:`RequestDropped`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raylog.core.coordinators.events import AppendRecords as AppendRecords
from raylog.core.coordinators.events import CoordinatorEvent, CoordinatorRequest
from raylog.core.coordinators.events import ProposeSleep as ProposeSleep
from raylog.core.coordinators.events import RequestDropped as RequestDropped
from raylog.core.coordinators.events import SleepRefused as SleepRefused
from raylog.core.coordinators.events import SleepRequested as SleepRequested
from raylog.core.coordinators.events import StoreProof as StoreProof
from raylog.core.coordinators.events import Tick as Tick
from raylog.core.decision import Refuse, Reply

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(CoordinatorRequest):
    """A request about one group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReceived(GroupRequest):
    """JoinGroup request.

    ``member_id`` "" = a new member. Static members give an ``instance_id``. ``protocols`` are (assignor name, metadata)
    in the member's order of preference. Timeouts are milliseconds. ``client_host`` is the sender's host.
    """

    member_id: str
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Sequence[tuple[str, bytes]]
    instance_id: str | None = None
    protocol_type: str = "consumer"
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReceived(GroupRequest):
    """SyncGroup request; the leader's carries the assignments of all members (``assignments``, by member id)."""

    generation: int
    member_id: str
    assignments: Mapping[str, bytes]
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(GroupRequest):
    """Heartbeat of a member; the answer reports whether its generation is still current."""

    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveReceived(GroupRequest):
    """LeaveGroup request: (member id, instance id) each; an empty member id removes a static member."""

    members: Sequence[tuple[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitReceived(GroupRequest):
    """OffsetCommit request: (topic id, topic, partition, offset, leader epoch or -1, note) each.

    ``generation`` -1 with an empty member id = a simple consumer, which uses the group only as a name.
    """

    generation: int
    member_id: str
    offsets: Sequence[tuple[str, str, int, int, int, str]]
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitReceived(GroupRequest):
    """TxnOffsetCommit request: offsets as in :class:`OffsetCommitReceived`, which wait for the transaction's end."""

    generation: int
    member_id: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    offsets: Sequence[tuple[str, str, int, int, int, str]]
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnOffsetsReceived(GroupRequest):
    """The end of a producer's transaction, from the transaction coordinator.

    ``producer_epoch`` is that of the producer's next transaction. ``coordinator_epoch`` -1 = from an administrator.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchReceived(GroupRequest):
    """OffsetFetch request: (topic id, topic, partition) each; None = all offsets of the group.

    ``require_stable``: the request is refused while a transaction has offsets of these partitions pending.
    ``member_epoch``: that of a member of the consumer protocol, which is refused in another epoch; -1 = no member.
    """

    partitions: Sequence[tuple[str, str, int]] | None = None
    require_stable: bool = False
    member_id: str = ""
    member_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResetReceived(GroupRequest):
    """OffsetReset request: (topic id, topic, partition, new offset, committed offset it was planned from) each.

    Planned from -1 = none was committed, -2 = any. ``generation`` is the group's when the reset was planned, -1 = any.
    """

    generation: int
    offsets: Sequence[tuple[str, str, int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteReceived(GroupRequest):
    """OffsetDelete request: (topic id, topic, partition) each; refused for topics that members subscribe to."""

    partitions: Sequence[tuple[str, str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsReceived(CoordinatorRequest):
    """List the groups of this coordinator; if types or states are named (in any case), only groups of these.

    An unknown name matches no group and is no error: a later release may know it.
    """

    states: Sequence[str] = ()
    types: Sequence[str] = ()
    coordinator: int = -1
    """The coordinator whose list is requested; -1 = not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupReceived(GroupRequest):
    """DescribeGroup request: state and members of one group.

    ``sees``: whether the sender may see offsets of a partition (topic id, topic, number); None = of all.
    """

    sees: Callable[[str, str, int], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupReceived(GroupRequest):
    """DeleteGroup request: delete a group, which may have no members, with all its offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeatReceived(GroupRequest):
    """ConsumerGroupHeartbeat request (KIP-848): a member joins, follows its assignment, and leaves.

    ``member_epoch`` 0 = join, -1 = leave, -2 = leave for a while (static members). ``sequence`` grows with each
    heartbeat of a member. ``topics``, ``assignor`` and ``owned`` ((topic id, topic, partition) each): None = as before;
    a join has to give ``topics``. The answer may be held back for ``max_wait_ms`` while there is no news for the
    member.
    """

    member_id: str
    member_epoch: int
    sequence: int
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    max_wait_ms: int
    topics: Sequence[str] | None = None
    assignor: str | None = None
    owned: Sequence[tuple[str, str, int]] | None = None
    instance_id: str | None = None
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSeen(CoordinatorEvent):
    """The result of :class:`LookUpTopics`: (topic id, number of partitions) by name; a missing topic does not exist."""

    requested: Sequence[str]
    topics: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTopics:
    """Fetch the metadata of these topics; :class:`TopicsSeen` follows, unless that fails."""

    cause: str
    topics: tuple[str, ...]


RequestEvent = (
    MemberHeartbeatReceived
    | JoinReceived
    | SyncReceived
    | HeartbeatReceived
    | LeaveReceived
    | OffsetCommitReceived
    | TxnOffsetCommitReceived
    | EndTxnOffsetsReceived
    | OffsetFetchReceived
    | OffsetResetReceived
    | OffsetDeleteReceived
    | ListGroupsReceived
    | DescribeGroupReceived
    | DeleteGroupReceived
)
Notice = RequestDropped | Tick | SleepRequested | SleepRefused | TopicsSeen
"""Events that are answered to no client."""
Event = RequestEvent | Notice

Effect = AppendRecords | StoreProof | Reply | Refuse | ProposeSleep | LookUpTopics
"""A :class:`Reply` is always in ``after_sync``; so is a :class:`Refuse` that depends on what is stored."""
