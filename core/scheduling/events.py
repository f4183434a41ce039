"""Events and effects of the scheduler's machine. Times of day are the owner's (``clock.py``), in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from raylog.core.decision import Refuse, RequestId
from raylog.core.lane import Trouble
from raylog.core.received import Received
from raylog.core.scheduling.envelope import HalfId
from raylog.core.scheduling.rows import Batch, LaneId, Row
from raylog.protocol.halves import DecideHalvesReply, DecideHalvesRequest
from raylog.protocol.scheduling import (
    CancelScheduledReply,
    CancelScheduledRequest,
    MoveScheduledReply,
    MoveScheduledRequest,
)

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from raylog.core.values import dataclass as value


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
    """A committed batch of producers' records, read in log order."""

    base_offset: int
    dues: tuple[int, ...]
    """One due time for each offset. That of a half message's record is ``HELD_MS`` + when it was sent."""
    size_bytes: int
    held: tuple[HeldRecord, ...] = ()
    """The batch's records that are part of half messages. Those whose headers cannot be read are left out."""
    names: tuple[tuple[int, int], ...] = ()
    """Offset and name of each record with a schedule id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRead:
    """A committed row of an owner, of this leader epoch or an earlier one, read in log order."""

    offset: int
    row: Row
    size_bytes: int
    value: bytes = field(repr=False, default=b"")
    """The record's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """All that was in the log when this leadership began has been read: from now on, this machine decides."""

    now_ms: int
    producer_id: int
    """A fresh producer id, for a partition that has none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed, or more of the log was read: there may be something to decide now."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a record that is due goes, and how large it is."""

    key: int
    topic: str
    lane: LaneId
    size_bytes: int
    name: int = 0
    """The name of its schedule id; 0 = it has none."""
    limit_bytes: int = 0
    """The most bytes that its topic takes in one batch; 0 = not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The targets of the first keys of a :class:`Resolve`, at least one; the other keys are requested again."""

    now_ms: int
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A target acknowledged a batch."""

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


@value(frozen=True, slots=True, kw_only=True)
class MoveReceived(Received[MoveScheduledRequest]):
    """Request to change the due time of a record, with what the log has of that record."""

    name: int = 0
    """The name of the record's schedule id; 0 = it has none."""


Command = Received[CancelScheduledRequest] | MoveReceived | Received[DecideHalvesRequest]
"""A request that a row decides: answered with :class:`Reply` once that is committed, or refused at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A committed batch of records that cannot be opened, and is skipped.

    That depends on its bytes alone, so that each leader skips the same batches.
    """

    base_offset: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTaken:
    """The answer to :class:`TakeProducer`: a producer id that no other process has."""

    now_ms: int
    producer_id: int


Event = DataRead | Unreadable | ProducerTaken | RowRead | Loaded | Tick | Resolved | Delivered | NotDelivered | Command

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append a row; it comes back as :class:`RowRead`. At most one is under way."""

    row: Row
    value: bytes = field(repr=False, default=b"")
    """The record's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Find the targets and sizes of these records; :class:`Resolved` has to follow. At most one is under way."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Send a batch to its target; :class:`Delivered` or :class:`NotDelivered` has to follow. At most one per target."""

    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeProducer:
    """Get another producer id; :class:`ProducerTaken` has to follow. At most one is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer a request."""

    request: RequestId
    message: CancelScheduledReply | MoveScheduledReply | DecideHalvesReply


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Delete the log below an offset: nothing there is needed any more."""

    before_offset: int


Effect = Append | Resolve | Deliver | TakeProducer | Reply | Refuse | Trim
