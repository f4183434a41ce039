"""What a replica's runner needs from outside: its log, a clock, syncs, the kept watermark, requests and links.

Implemented under Ray by ``PartitionLog``, ``raylog.actors.clock``, ``Flusher``, ``WatermarkKeeper``, ``rpc.Request``
and ``ReplicaServer``; in the simulator by twins on a virtual disk, clock and network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from raylog.actors.request_table import Answerable
from raylog.actors.settings import CleanerPace, ScrubPace
from raylog.core.metrics.cleaning import CleanerFigures
from raylog.core.metrics.scrubbing import ScrubFigures
from raylog.core.replication import events as ev
from raylog.core.replication.damage import RebuildLog
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.times import TimeBounds, TimesFound
from raylog.storage.errors import LogDamaged
from raylog.storage.log.config import FileSlice, LogConfig

Records: TypeAlias = Any
"""Record batches as the log takes and gives them. A runner knows their length only: in bytes, or entries if virtual."""


class Appended(Protocol):
    """What an append did; see :class:`raylog.storage.log.config.AppendInfo`."""

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""

    @property
    def duplicate(self) -> bool:
        """Whether the batches were stored before, at these offsets."""

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, start offset) of the epochs that began with it."""

    @property
    def rewritten(self) -> tuple[Records, int] | None:
        """What the log has in place of the producer's bytes, and the time of the append; None = these bytes."""


class ProducerEntry(Protocol):
    """An idempotent or transactional producer that a log knows; see :class:`raylog.protocol.replica.ActiveProducer`."""

    @property
    def producer_id(self) -> int:
        """Its number."""

    @property
    def producer_epoch(self) -> int:
        """Epoch of its newest batch or marker."""

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record; -1 = none in this epoch."""

    @property
    def last_timestamp(self) -> int:
        """Time of its last append, in milliseconds since 1970; -1 = none."""

    @property
    def coordinator_epoch(self) -> int:
        """Epoch of the transaction coordinator that wrote its last marker; -1 = none did."""

    @property
    def txn_start_offset(self) -> int:
        """First offset of its open transaction; -1 = none is open."""


class Cleaning(Protocol):
    """What compacts a log from time to time; see :class:`raylog.actors.replica.cleaner.Cleaner`."""

    def tick(self, now_ms: int, wall_ms: int, high_watermark: int) -> None:
        """Begin a cleaning if it is due. ``now_ms`` is monotonic, ``wall_ms`` the time that deletes."""

    def reconfigure(self, pace: CleanerPace) -> None:
        """Go at this pace from now on."""

    def figures(self) -> CleanerFigures | None:
        """Return the state of the log's cleanings for metrics; None where the log is not compacted."""

    def when_cleaned(self, callback: Callable[[], None]) -> None:
        """Have this called whenever the log has other batches at the same offsets than before."""

    def when_damaged(self, callback: Callable[[LogDamaged], None]) -> None:
        """Have this called with damage that a cleaning meets."""


class Scrubbing(Protocol):
    """What reads a log again to find damage; see :class:`raylog.actors.replica.scrubber.Scrubber`."""

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Begin a slice if it is due. ``now_ms`` is monotonic, ``wall_ms`` the time of day."""

    def reconfigure(self, pace: ScrubPace) -> None:
        """Go at this pace from now on."""

    def figures(self) -> ScrubFigures:
        """Return the state of the passes."""

    def when_damaged(self, callback: Callable[[LogDamaged], None]) -> None:
        """Have this called with damage that a slice has."""

    def when_remade(self, callback: Callable[[str], None]) -> None:
        """Have this called with what was wrong in a file that was made again."""


class EpochEntries(Protocol):
    """The leader epochs of a log."""

    @property
    def entries(self) -> Sequence[tuple[int, int]]:
        """(leader epoch, start offset), ascending."""


class Log(Protocol):
    """The part of ``PartitionLog`` that a runner uses. Each method raises its StorageErrors.

    No parameter has a default: what is left out on the way to the disk or the clock stands still unseen. ``now_ms`` is
    the time of day in milliseconds, that of the careful clock.
    """

    config: LogConfig
    opened_for: object
    """The configuration for which the bodies of the next :meth:`append_as_leader` were opened; None = they were not."""

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets."""

    @property
    def synced_end_offset(self) -> int:
        """Everything below is on disk."""

    @property
    def size_bytes(self) -> int:
        """How much is kept."""

    @property
    def oldest_ms(self) -> int:
        """Newest timestamp in the oldest segment; -1 = the log has no record."""

    @property
    def epochs(self) -> EpochEntries:
        """The leader epochs, as recovery found them and as they were assigned since."""

    @property
    def is_closed(self) -> bool:
        """Whether an error has closed it, so that only opening it again shows what the disk has."""

    @property
    def may_lack_producers(self) -> bool:
        """False where :attr:`lacks_producers` is for sure; costs nothing."""

    @property
    def lacks_producers(self) -> bool:
        """Whether it is empty, begins above 0, and knows none of the producers before its start."""

    def producers_below(self, offset: int) -> Records:
        """Return what it knows of the producers of the batches before an offset."""

    def adopt_producers(self, snapshot: Records, now_ms: int) -> None:
        """Take what the leader knows of the producers before the start, while the log is empty."""

    def append_as_leader(self, payload: Records, leader_epoch: int, now_ms: int) -> Appended:
        """Give a producer's batches their offsets and append them."""

    def transaction_of(self, payload: Records) -> tuple[int, int, bool] | None:
        """Return producer id and epoch of batches of a transaction, and whether they would open it; None = none are."""

    def append_marker(self, marker: TxnMarker, leader_epoch: int, now_ms: int) -> Appended:
        """End the transaction of a producer; a duplicate where its end was written before."""

    @property
    def has_open_transactions(self) -> bool:
        """Whether a producer has a transaction here that no marker has ended."""

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the oldest transaction not ended below the high watermark, else the latter."""

    def may_have_aborted(self, start: int) -> bool:
        """Return whether :meth:`aborted_transactions` may find any from ``start`` on; costs next to nothing."""

    def aborted_transactions(self, start: int, upper: int) -> Sequence[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions with records in [start, upper), in order."""

    def active_producers(self) -> Sequence[ProducerEntry]:
        """Return the producers that the log knows."""

    def append_as_follower(self, payload: Records, now_ms: int) -> Appended:
        """Append what the leader sent."""

    def count_producers_as_seen(self, now_ms: int) -> None:
        """Have producers that send nothing from here on forgotten only after their whole time."""

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Note durably where a leader epoch begins."""

    def read(self, offset: int, max_bytes: int, upper: int) -> Records:
        """Return whole batches from ``offset`` on that end at or below ``upper``."""

    def read_part(self, offset: int, start: int, size: int) -> bytes:
        """Return up to so many bytes of the batch that holds an offset, from its byte ``start`` on, unverified."""

    def slices(self, offset: int, max_bytes: int, upper: int) -> list[FileSlice]:
        """As :meth:`read`, as places in files."""

    def offset_for_timestamp(self, timestamp_ms: int, upper: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record below ``upper`` that is not older."""

    def first_within(self, times: TimeBounds, offset: int, upper: int, batches_max: int) -> TimesFound:
        """Return the first batch from ``offset`` on that may hold a record within these times."""

    def max_timestamp(self, upper: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the newest record below ``upper``."""

    def end_after_cut(self, offset: int) -> int:
        """Where :meth:`truncate_to` will have the log end: it is cut between batches."""

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Cut everything at and above an offset, durably."""

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything and go on at an offset, durably."""

    def advance_log_start(self, offset: int) -> object:
        """Move the log start offset, durably."""

    def apply_retention(self, now_ms: int, high_watermark: int) -> object:
        """Remove what the configuration no longer keeps, below the high watermark."""

    def purge_deleted(self, now_ms: int) -> object:
        """Remove the files of segments that were deleted a while ago."""


class Clock(Protocol):
    """Three clocks; see :mod:`raylog.actors.clock`."""

    @property
    def monotonic_ns(self) -> Callable[[], int]:
        """Nanoseconds that never go back."""

    @property
    def since_boot_ns(self) -> Callable[[], int]:
        """Nanoseconds of a clock that cannot be set and goes on in suspension."""

    @property
    def wall_ns(self) -> Callable[[], int]:
        """Nanoseconds since 1970."""


class Sync(Protocol):
    """Brings the log to disk. After each sync :meth:`ReplicaRunner.synced` has to be called."""

    @property
    def busy_since_ms(self) -> int | None:
        """Start of the running sync, by the monotonic clock; None = no sync runs."""

    @property
    def exclusive(self) -> AbstractContextManager[object]:
        """Held while the log is cut, so that no sync spans the cut."""

    def kick(self) -> None:
        """Begin a sync soon: something was appended."""


class Keeper(Protocol):
    """The high watermark on disk."""

    @property
    def offset(self) -> int:
        """The watermark of an earlier incarnation: everything below is committed."""

    def tick(self, now_ms: int, watermark: int, state: object) -> None:
        """Write the watermark if it is due; ``state`` is the partition's."""

    def lower(self, to: int) -> None:
        """Lower the watermark to at most ``to``, durably. Raises KafkaStorageError."""


class ReplicaRequest(Answerable, Protocol):
    """A request of a client or a follower."""

    began_ns: int
    """When it came, by the monotonic clock."""
    opened_for: object
    """The configuration of the log for which the bodies of its records were opened; None = they were not."""
    append_ms: int
    """When its records were appended, in milliseconds since 1970, where they carry that time; else -1."""

    @property
    def payload(self) -> Records:
        """The records that came with it."""

    @property
    def room_bytes(self) -> int:
        """How large its answer should be at most; 0 = its sender has to take earlier ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPorts:
    """What the runner cannot do itself. None of them feeds the runner from inside the call."""

    send_fetch: Callable[[ev.SendFetch], None]
    propose_isr: Callable[[ev.ProposeIsr], None]
    propose_sleep: Callable[[ev.ProposeSleep], None]
    resign: Callable[[ev.ResignLeadership], None]
    rebuild: Callable[[RebuildLog], None]
    """Must have the log set aside at the next start, and end the process."""
    role_changed: Callable[[ev.RoleChanged], None]
    verify: Callable[[ev.VerifyTransaction], None]
    """Must have :meth:`ReplicaRunner.transaction_confirmed` called in any case, by the deadline."""
    soon: Callable[[Callable[[], None]], object]
    """Must call the function when the requests that have come in meanwhile had their turn."""
    fatal: Callable[[str], None]
    """Must end the process: the disk failed or a defect showed."""
    is_busy: Callable[[], bool] = lambda: False
    """Returns whether a leader role needs the partition awake."""
    needed_from: Callable[[], int | None] = lambda: None
    """Returns the lowest offset that a leader role still has to copy elsewhere; None = there is none."""
