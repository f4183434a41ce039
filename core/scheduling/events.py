"""Events and effects of the scheduler's machine. Times of day are the owner's (``clock.py``), in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raylog.core.scheduling.envelope import HalfId
from raylog.core.scheduling.halves import Standing
from raylog.core.scheduling.rows import Batch, Decision, LaneId, Row

RequestId = int


class Trouble(StrEnum):
    """Why a target did not take a batch."""

    UNREACHABLE = "unreachable"
    """It may have it, or get it later: the same batch is sent again."""
    DELETED = "deleted"
    """Its topic does not exist any more."""
    FORGOTTEN = "forgotten"
    """It does not know the producer's last sequence: it lost records by an unclean election."""
    REFUSED = "refused"
    """It will never take this batch."""


class Outcome(StrEnum):
    """What became of a request about one scheduled record."""

    DONE = "DONE"
    ALREADY_DELIVERED = "ALREADY_DELIVERED"
    ALREADY_CANCELLED = "ALREADY_CANCELLED"


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A record that is part of a half message."""

    offset: int
    name: HalfId
    check_after_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRead:
    """A committed batch of records of a producer, in log order; ``dues`` has one due time for each offset."""

    base_offset: int
    dues: tuple[int, ...]
    size_bytes: int
    held: tuple[HeldRecord, ...] = ()
    """Those of its records that are parts of half messages; other records with such a timestamp are left out."""
    names: tuple[tuple[int, int], ...] = ()
    """Offsets of its records with schedule ids, and their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRead:
    """A committed row of an owner, of this epoch or an earlier one, in log order."""

    offset: int
    row: Row
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything is read that was in the log when this leadership began: from now on this machine decides."""

    now_ms: int
    producer_id: int
    """A fresh one, for a partition that has none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed, or the log was read on: something else may be possible now."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a record that is due goes, and how large it is."""

    key: int
    topic: str
    lane: LaneId
    size_bytes: int
    name: int = 0
    """That of its schedule id; 0 = it has none."""
    limit_bytes: int = 0
    """The most that its topic takes in one batch; 0 = that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The targets of the first keys of a :class:`Resolve`, at least one; the others are requested again."""

    now_ms: int
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A target has a batch."""

    now_ms: int
    lane: LaneId
    epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDelivered:
    """A target did not take a batch."""

    now_ms: int
    lane: LaneId
    epoch: int
    base_sequence: int
    trouble: Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReceived:
    """Request to cancel records; answered with an :class:`Outcome` for each once that is committed."""

    now_ms: int
    request: RequestId
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReceived:
    """Request that a record is due at another time; answered as a cancellation is."""

    now_ms: int
    request: RequestId
    key: int
    due_ms: int
    name: int = 0
    """That of the record's schedule id; 0 = it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideReceived:
    """Request with decisions about half messages; answered with :class:`HalvesAnswer` once they are committed."""

    now_ms: int
    request: RequestId
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A committed batch of records that cannot be opened: it is passed over. Decided by its bytes alone."""

    base_offset: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTaken:
    """A producer id that no other process has, for a :class:`TakeProducer`."""

    now_ms: int
    producer_id: int


Event = (
    DataRead
    | Unreadable
    | ProducerTaken
    | RowRead
    | Loaded
    | Tick
    | Resolved
    | Delivered
    | NotDelivered
    | CancelReceived
    | MoveReceived
    | DecideReceived
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append a row; it comes back as :class:`RowRead`. There is one at a time."""

    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Find the targets and sizes of these records; :class:`Resolved` has to follow. There is one at a time."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Send a batch to its target; :class:`Delivered` or :class:`NotDelivered` has to follow. One a target."""

    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeProducer:
    """Take another producer id; :class:`ProducerTaken` has to follow. There is one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer a request: for each of its keys the outcome, and the key under which the record waits now."""

    request: RequestId
    outcomes: tuple[tuple[Outcome, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesAnswer:
    """Answer a request: what stands of each half message, in its order, and for how many records."""

    request: RequestId
    standings: tuple[tuple[Standing, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Nothing below an offset is needed any more."""

    before_offset: int


Effect = Append | Resolve | Deliver | TakeProducer | Answer | HalvesAnswer | Trim
