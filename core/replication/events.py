"""Events and effects of a partition replica.

Requests come as :class:`raylog.core.received.Received`, with the messages of ``protocol/replica.py``. The shell (an
actor, or the simulator) feeds events in arrival order and carries effects out. Input/output is in two phases: the
machine requests an append, a truncation or a read (``now``); the shell carries it out. After an append or a cut the
shell feeds the result (``LeaderAppended``, ``FollowerAppended``, ``AppendFailed``, ``LogCut``) before any other event.
The machine never sees records: only offsets, epochs and sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.base.errors import RaylogError
from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionEpoch
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.core.replication.consumer_events import ConsumerEffect, FetchStillWaits, FetchTurnBegan
from raylog.core.replication.damage import DamageFound, RebuildLog
from raylog.core.replication.log import LogCut
from raylog.protocol.message import WAIT_MS_MAX
from raylog.protocol.replica import (
    DeleteRecordsRequest,
    DescribeProducersRequest,
    FetchNearRequest,
    FetchRequest,
    FindTimesRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    ReplicaFetchRequest,
    WriteTxnMarkersRequest,
)

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from raylog.core.values import dataclass

_ZERO = Offset(0)

RequestId = int
"""Chosen by the shell for requests it received, by the machine for requests it sends; each unique per incarnation."""


def deadline_ms(arrived_ms: int, wait_ms: int) -> int:
    """Return until when a request waits that came at ``arrived_ms`` and states that it may wait for ``wait_ms``."""
    return arrived_ms + (WAIT_MS_MAX if wait_ms > WAIT_MS_MAX else wait_ms)


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReceived:
    """The controller sent the partition's state to this incarnation. Old or foreign ones are ignored."""

    cause: str
    now_ms: int
    incarnation: Incarnation
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnClaim:
    """The transaction to which a batch claims to belong; empty ``transactional_id`` = the request names none."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProduce(Received[ProduceRequest]):
    """A produce request with batches of a transaction, as the shell has seen in them; never with ``acks`` 0.

    ``opens_transaction``: appending them to the present log would open the transaction.
    """

    producer_id: int
    producer_epoch: int
    opens_transaction: bool

    @property
    def claim(self) -> TxnClaim:
        """The transaction to which the batches claim to belong."""
        return TxnClaim(
            transactional_id=self.message.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfirmed:
    """Answer to the :class:`VerifyTransaction` ``request``: the transaction is open, and has this partition.

    ``error``: it is not (InvalidTxnState, InvalidProducerEpoch), or no coordinator has answered in time (retriable).
    """

    cause: str
    now_ms: int
    request: RequestId
    error: RaylogError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAppended:
    """The append that the machine has requested is in the log (not yet durable, unless ``durable``).

    ``duplicate``: no record was appended; the batch is stored at these offsets already, a marker somewhere below the
    end. ``durable``: everything in the log counts as durable, as it does under a relaxed flush policy as soon as it is
    written.
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
    """The requested append failed; the log is unchanged.

    ``error`` is the error for the producer (for example OutOfOrderSequence); None = the disk failed.
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

    A sync that began before a :class:`TruncateLog` or :class:`ResetLog` does not cover what was appended after it: the
    shell must not report it.
    """

    cause: str
    now_ms: int
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswered:
    """The leader answered this replica's fetch ``request``.

    ``diverging`` = (leader epoch, end offset) where the histories part: then there are no records. ``end_offset`` is
    the end of the records that came (the fetch offset when none came), and ``size_bytes`` their size. ``held_from``:
    the lowest offset that the leader's roles still have to copy elsewhere; -1 = none.
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
    held_from: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """Fetch ``request`` got an error or no answer; ``error_code`` is Kafka's number, 1001 when the link broke.

    ``log_start_offset`` is the leader's, when the error is OffsetOutOfRange (1).
    """

    cause: str
    now_ms: int
    request: RequestId
    error_code: int
    log_start_offset: Offset = _ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChangeAnswered:
    """Answer to ISR proposal ``request``: ``error_code`` 0 and the new state, or an error.

    1001 and other retriable numbers mean: outcome unknown, propose the same again.
    """

    cause: str
    now_ms: int
    request: RequestId
    error_code: int
    state: PartitionState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepRequested:
    """The controller would have the partition sleep soon, if nothing was used for ``idle_ms``.

    ``for_stop``: also if it never sleeps otherwise.
    """

    cause: str
    now_ms: int
    idle_ms: int
    for_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepAnswered:
    """Answer to sleep proposal ``request``: ``error_code`` 0 and the new state, or an error; 1001 = outcome unknown."""

    cause: str
    now_ms: int
    request: RequestId
    error_code: int
    state: PartitionState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartAdvanced:
    """The log start offset has moved, durably, by retention or :class:`AdvanceLogStart`."""

    cause: str
    now_ms: int
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped:
    """The connection of a parked request is closed: drop the request without an answer."""

    cause: str
    now_ms: int
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed. The shell sends one at least every 50 ms while the replica runs."""

    cause: str
    now_ms: int
    sync_since_ms: int | None = None
    """When the oldest sync under way began, by the same clock; None: no sync is under way."""
    in_transaction: bool = False
    """Whether a transaction is open in the log, or a role of the leader is at work: the partition does not sleep."""


LeaderRequest = (
    ProduceRequest
    | ReplicaFetchRequest
    | FetchRequest
    | FetchNearRequest
    | ListOffsetsRequest
    | FindTimesRequest
    | OffsetForLeaderEpochRequest
    | DeleteRecordsRequest
    | WriteTxnMarkersRequest
    | DescribeProducersRequest
)
"""Requests that only a leader of the right epoch serves."""
LeaderEvent = LeaderAppended | FetchStillWaits | FetchTurnBegan | RequestDropped | TransactionConfirmed
FollowerEvent = FetchAnswered | FetchFailed | FollowerAppended | LogCut
EitherEvent = Synced | Tick | AppendFailed | LogStartAdvanced | DamageFound
ControllerEvent = StateReceived | IsrChangeAnswered | SleepRequested | SleepAnswered
Event = Received[LeaderRequest] | LeaderEvent | FollowerEvent | EitherEvent | ControllerEvent

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
class VerifyTransaction:
    """Query the coordinator of a transactional id whether this transaction is open, and has this partition.

    :class:`TransactionConfirmed` follows in any case, at ``deadline_ms`` at the latest.
    """

    cause: str
    request: RequestId
    claim: TxnClaim
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendMarker:
    """Append the marker, unless it was written before; answer with ``LeaderAppended``."""

    marker: Received[WriteTxnMarkersRequest]
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFetched:
    """Append the records that came with fetch answer ``request``; answer with ``FollowerAppended``."""

    cause: str
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Remove every batch that has an offset at or after ``to``, durably, before any other effect.

    :class:`LogCut` follows.
    """

    cause: str
    to: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLog:
    """Discard the whole log and start at ``start_offset``: the leader no longer has the next record needed.

    :class:`LogCut` follows.
    """

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
    """Answer the client: no replica that counts holds records below ``low_watermark`` any more."""

    cause: str
    request: RequestId
    low_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """Request another in-sync leader from the controller, because of the ``reason``, which this disk gives.

    Repeated after a pause while that lasts; the controller answers with a new partition state.
    """

    cause: str
    leader_epoch: LeaderEpoch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerProduce:
    """Acknowledge to the producer that its batches are stored at ``first_offset`` as its acks requires."""

    cause: str
    request: RequestId
    first_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMarker:
    """Answer that every in-sync replica has the marker."""

    request: RequestId


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
class AnswerProducers:
    """Answer a follower whose empty log begins at ``offset``: the producers of the batches before it, no records."""

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch
    offset: Offset
    high_watermark: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDiverging:
    """Answer a diverging follower: the leader's largest epoch not above the follower's last one, and where it ends."""

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch
    end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetch:
    """Send a fetch to the leader; at most one is in flight.

    ``max_bytes`` and ``max_wait_ms``, the time that it may wait there for records: 0 = the shell chooses.
    ``lacks_producers``: set by the shell, which knows the log.
    """

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
    max_wait_ms: int = 0
    lacks_producers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Propose an ISR to the controller; valid only at this leader epoch and partition epoch.

    ``isr`` names each member with the incarnation that earned its place. ``drops_eligible``: clears the ELR, because
    the leader is about to expose records that those replicas may lack.
    """

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, Incarnation], ...]
    drops_eligible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeSleep:
    """Propose to the controller that the partition sleeps; valid only at this leader epoch and partition epoch.

    All replicas have the log up to ``end_offset`` on disk; ``last_epoch`` is that of its last record, -1 = none.
    """

    cause: str
    request: RequestId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    log_start_offset: Offset
    end_offset: Offset
    last_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """The replica now leads, follows, or neither; parked requests were refused before."""

    cause: str
    leading: bool
    leader: BrokerId
    leader_epoch: LeaderEpoch


Effect = (
    AssignLeaderEpoch
    | AppendBatches
    | VerifyTransaction
    | AppendMarker
    | AppendFetched
    | TruncateLog
    | ResetLog
    | AdvanceLogStart
    | AnswerDeleteRecords
    | ResignLeadership
    | RebuildLog
    | AnswerProduce
    | AnswerMarker
    | RefuseRequest
    | AnswerFetch
    | AnswerProducers
    | AnswerDiverging
    | SendFetch
    | ProposeIsr
    | ProposeSleep
    | RoleChanged
    | ConsumerEffect
)
