"""What can happen to a partition replica, and what it asks its shell to do.

The shell (an actor, or the simulator) feeds events in arrival order and carries effects out. Input/output is in two
phases: the machine asks for an append, a truncation or a read (``now``), the shell does it and, for appends, comes back
at once with the fact (``LeaderAppended``, ``FollowerAppended``, ``AppendFailed``) before it feeds anything else.
The machine never sees records: only offsets, epochs and sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.core.errors import RaylogError
from raylog.core.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionEpoch
from raylog.core.partition import PartitionState
from raylog.core.replication.consumer_events import ConsumerEffect, ConsumerRequest, FetchStillWaits

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from raylog.core.values import dataclass

_ZERO = Offset(0)

RequestId = int
"""Chosen by the shell for requests it received, by the machine for requests it sends; each unique within one life."""

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReceived:
    """The controller sent the partition's state to this incarnation. Old or foreign ones are ignored."""

    cause: str
    now_ms: int
    incarnation: Incarnation
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceReceived:
    """A client wants to append; ``acks`` is 0, 1 or -1 (all); ``leader_epoch`` -1 = the client does not know it."""

    cause: str
    now_ms: int
    request: RequestId
    acks: int
    leader_epoch: LeaderEpoch
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAppended:
    """The append asked for by :class:`AppendBatches` is in the log (not yet durable, unless ``durable``).

    ``duplicate``: nothing was appended, the batch was stored before at these offsets. ``durable``: everything in the
    log counts as durable, as it does under a relaxed flush policy as soon as it is written.
    """

    cause: str
    now_ms: int
    request: RequestId
    first_offset: Offset
    end_offset: Offset
    duplicate: bool = False
    durable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFailed:
    """The append asked for could not be done; the log is as it was before.

    ``error`` is what the producer is told (for example OutOfOrderSequence); None = the disk failed. A truncation that
    fails has no event: the replica ends, as its log is not what the machine holds it to be.
    """

    cause: str
    now_ms: int
    request: RequestId
    error: RaylogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAppended:
    """The records of a fetch answer are in the log (not yet durable, unless ``durable``: see :class:`LeaderAppended`).

    ``epochs`` are the (leader epoch, start offset) pairs that begin in them.
    """

    cause: str
    now_ms: int
    request: RequestId
    end_offset: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
    durable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Everything below ``end_offset`` is durable.

    A sync that began before a :class:`TruncateLog` or :class:`ResetLog` says nothing about what was appended after it:
    the shell must not report it any more.
    """

    cause: str
    now_ms: int
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReceived:
    """A follower asks for records from ``fetch_offset`` on, which also says: all below is durable at my place.

    ``max_bytes`` comes back in the answer's effect. ``log_start_offset`` is where its own log begins; ``disk_failing``
    that its disk has refused appends for a while.
    """

    cause: str
    now_ms: int
    request: RequestId
    follower: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    deadline_ms: int
    max_bytes: int
    log_start_offset: Offset = _ZERO
    disk_failing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswered:
    """The leader answered our fetch ``request``.

    ``diverging`` = (leader epoch, end offset) where the histories part: then there are no records. ``end_offset`` is
    the end of the records that came (the fetch offset when none came), and ``size_bytes`` how much they weigh.
    """

    cause: str
    now_ms: int
    request: RequestId
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    log_start_offset: Offset
    end_offset: Offset
    diverging: tuple[LeaderEpoch, Offset] | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """Our fetch ``request`` got an error or no answer; ``error_code`` is Kafka's number, 1001 when the link broke.

    ``log_start_offset`` is the leader's, when the error is OffsetOutOfRange (1).
    """

    cause: str
    now_ms: int
    request: RequestId
    error_code: int
    log_start_offset: Offset = _ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChangeAnswered:
    """The controller decided on our ISR proposal ``request``: ``error_code`` 0 and the new state, or an error.

    1001 and other retriable numbers mean: outcome unknown, propose the same again.
    """

    cause: str
    now_ms: int
    request: RequestId
    error_code: int
    state: PartitionState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsReceived:
    """A client wants the records below ``before_offset`` gone; -1 = all that are committed."""

    cause: str
    now_ms: int
    request: RequestId
    leader_epoch: LeaderEpoch
    before_offset: Offset
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartAdvanced:
    """Retention, or what :class:`AdvanceLogStart` asked for, moved the log start offset, durably."""

    cause: str
    now_ms: int
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped:
    """The connection of a parked request is gone: forget the request; nobody waits for its answer."""

    cause: str
    now_ms: int
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed. The shell sends one at least every 50 ms while the replica runs."""

    cause: str
    now_ms: int
    sync_since_ms: int | None = None
    """When the oldest sync began that has not ended yet, by the same clock; None: nothing is being synced."""


LeaderRequest = ProduceReceived | FetchReceived | DeleteRecordsReceived | ConsumerRequest
"""What only a leader of the right epoch serves."""
LeaderEvent = LeaderAppended | FetchStillWaits | RequestDropped
FollowerEvent = FetchAnswered | FetchFailed | FollowerAppended
EitherEvent = Synced | Tick | AppendFailed | LogStartAdvanced
ControllerEvent = StateReceived | IsrChangeAnswered
Event = LeaderRequest | LeaderEvent | FollowerEvent | EitherEvent | ControllerEvent

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignLeaderEpoch:
    """Write (epoch, start offset) durably into the leader-epoch checkpoint, before any record of that epoch."""

    cause: str
    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBatches:
    """Append the batches of produce ``request``, stamped with ``leader_epoch``; answer with ``LeaderAppended``."""

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFetched:
    """Append the records that came with fetch answer ``request``; answer with ``FollowerAppended``."""

    cause: str
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Cut everything at and above ``to``, durably, before anything else is done."""

    cause: str
    to: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLog:
    """Throw the whole log away and start at ``start_offset``: the leader no longer has what we would need next."""

    cause: str
    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Move the log start offset to ``to``, durably; answer with ``LogStartAdvanced``.

    When the disk refuses, ``request`` (None at a follower) is answered with the error and dropped with
    ``RequestDropped``; a follower tries again by itself.
    """

    cause: str
    to: Offset
    request: RequestId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDeleteRecords:
    """Tell the client that no replica that counts holds records below ``low_watermark`` any more."""

    cause: str
    request: RequestId
    low_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """Ask the controller to let another in-sync replica lead: our disk has refused appends for a while, or hangs.

    Sent again after a pause for as long as it stays so; the answer is the controller's next word.
    """

    cause: str
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerProduce:
    """Tell the producer that its batches are stored at ``first_offset`` as its acks asked for."""

    cause: str
    request: RequestId
    first_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseRequest:
    """Answer a produce or fetch request with an error."""

    cause: str
    request: RequestId
    error: RaylogError


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetch:
    """Answer a follower: records from ``fetch_offset`` up to ``upper`` (exclusive), up to ``max_bytes`` of them."""

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    upper: Offset
    max_bytes: int
    high_watermark: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDiverging:
    """Answer a follower whose log parts from ours: our largest epoch not above its last, and our end of it."""

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetch:
    """Ask the leader for records; at most one fetch is outstanding. ``max_bytes`` 0 = as many as the shell likes."""

    cause: str
    request: RequestId
    leader: BrokerId
    leader_epoch: LeaderEpoch
    incarnation: Incarnation
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    max_bytes: int = 0
    log_start_offset: Offset = _ZERO
    disk_failing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Ask the controller to change the ISR, if leader epoch and partition epoch are still these.

    ``isr`` names each member with the incarnation that earned its place. ``drops_eligible``: no replica outside the
    ISR is to be trusted with everything committed any more, because the leader is about to show what it has itself.
    """

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, Incarnation], ...]
    drops_eligible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """The replica now leads, follows, or neither; requests that wait were refused before."""

    cause: str
    leading: bool
    leader: BrokerId
    leader_epoch: LeaderEpoch


Effect = (
    AssignLeaderEpoch
    | AppendBatches
    | AppendFetched
    | TruncateLog
    | ResetLog
    | AdvanceLogStart
    | AnswerDeleteRecords
    | ResignLeadership
    | AnswerProduce
    | RefuseRequest
    | AnswerFetch
    | AnswerDiverging
    | SendFetch
    | ProposeIsr
    | RoleChanged
    | ConsumerEffect
)
