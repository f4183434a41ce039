"""The ports of a replica's runner: its log, clocks, syncs, the high watermark on disk, requests and links.

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
"""Record batches as the log takes and returns them. A runner uses only their length: bytes, or entries if virtual."""


class Appended(Protocol):
    """The outcome of an append; see :class:`raylog.storage.log.config.AppendInfo`."""

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""

    @property
    def duplicate(self) -> bool:
        """Whether the batches had been stored before, at these offsets."""

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, start offset) of the epochs that began with this append."""

    @property
    def rewritten(self) -> tuple[Records, int] | None:
        """The bytes that the log has in place of the producer's, and the time of the append; None = the producer's."""


class ProducerEntry(Protocol):
    """An idempotent or transactional producer that a log knows; see :class:`raylog.protocol.replica.ActiveProducer`."""

    @property
    def producer_id(self) -> int:
        """The producer id."""

    @property
    def producer_epoch(self) -> int:
        """Producer epoch of its newest batch or marker."""

    @property
    def last_sequence(self) -> int:
        """Sequence number of its last record; -1 = none in this epoch."""

    @property
    def last_timestamp(self) -> int:
        """Time of its last append, in milliseconds since 1970; -1 = none."""

    @property
    def coordinator_epoch(self) -> int:
        """Epoch of the transaction coordinator that wrote its last marker; -1 = no marker yet."""

    @property
    def txn_start_offset(self) -> int:
        """First offset of its open transaction; -1 = none is open."""


class Cleaning(Protocol):
    """Compacts a log from time to time; see :class:`raylog.actors.replica.cleaner.Cleaner`."""

    def tick(self, now_ms: int, wall_ms: int, high_watermark: int) -> None:
        """Begin a cleaning if one is due. ``now_ms`` is monotonic; retention of records is decided by ``wall_ms``."""

    def reconfigure(self, pace: CleanerPace) -> None:
        """Go at this pace from now on."""

    def figures(self) -> CleanerFigures | None:
        """Return the state of the log's cleanings for metrics; None where the log is not compacted."""

    def when_cleaned(self, callback: Callable[[], None]) -> None:
        """Have this called whenever the log has other batches at the same offsets than before."""

    def when_damaged(self, callback: Callable[[LogDamaged], None]) -> None:
        """Have this called with damage that a cleaning meets."""


class Scrubbing(Protocol):
    """Reads a log again and again to find damage; see :class:`raylog.actors.replica.scrubber.Scrubber`."""

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Begin a slice if one is due. ``now_ms`` is monotonic, ``wall_ms`` the time of day."""

    def reconfigure(self, pace: ScrubPace) -> None:
        """Use this pace from now on."""

    def figures(self) -> ScrubFigures:
        """Return the state of the passes, for metrics."""

    def when_damaged(self, callback: Callable[[LogDamaged], None]) -> None:
        """Set a callback for damage that a slice finds."""

    def when_remade(self, callback: Callable[[str], None]) -> None:
        """Set a callback for a rebuilt file; it gets a description of the file's damage."""


class EpochEntries(Protocol):
    """The leader epochs of a log."""

    @property
    def entries(self) -> Sequence[tuple[int, int]]:
        """(leader epoch, start offset), ascending."""


class Log(Protocol):
    """The part of ``PartitionLog`` that a runner uses. Each method raises its StorageErrors.

    No parameter has a default, so that none is left out by mistake. ``now_ms`` is the time of day in milliseconds, as
    the ``CarefulClock`` gives it.
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
        """Records below this offset are on disk."""

    @property
    def size_bytes(self) -> int:
        """Size of the log in bytes."""

    @property
    def oldest_ms(self) -> int:
        """Newest timestamp in the oldest segment; -1 = the log has no record."""

    @property
    def epochs(self) -> EpochEntries:
        """The leader epochs: those that recovery found, and those assigned since."""

    @property
    def is_closed(self) -> bool:
        """Whether an error has closed it: what the disk has is known only after it was opened again."""

    @property
    def may_lack_producers(self) -> bool:
        """False if :attr:`lacks_producers` certainly is; costs nothing."""

    @property
    def lacks_producers(self) -> bool:
        """Whether the log is empty, begins above 0, and knows none of the producers before its start."""

    def producers_below(self, offset: int) -> Records:
        """Return a snapshot of the producers of the batches before an offset."""

    def adopt_producers(self, snapshot: Records) -> None:
        """Apply the leader's snapshot of the producers before the log's start, while the log is empty."""

    def append_as_leader(self, payload: Records, leader_epoch: int, now_ms: int) -> Appended:
        """Assign offsets to a producer's batches, and append them."""

    def transaction_of(self, payload: Records) -> tuple[int, int, bool] | None:
        """Return producer id and epoch of the batches, and whether they would open a transaction.

        None: they belong to no transaction.
        """

    def append_marker(self, marker: TxnMarker, leader_epoch: int, now_ms: int) -> Appended:
        """Append the marker that ends a producer's transaction; a duplicate if that was written before."""

    @property
    def has_open_transactions(self) -> bool:
        """Whether a producer has a transaction in this log that no marker has ended."""

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the oldest transaction not ended below the high watermark; else that."""

    def may_have_aborted(self, start: int) -> bool:
        """Return whether :meth:`aborted_transactions` may find any from ``start`` on; costs almost nothing."""

    def aborted_transactions(self, start: int, upper: int) -> Sequence[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions with records in [start, upper), in order."""

    def active_producers(self) -> Sequence[ProducerEntry]:
        """Return the producers that the log knows."""

    def append_as_follower(self, payload: Records, now_ms: int) -> Appended:
        """Append batches that the leader sent, with their offsets."""

    def count_producers_as_seen(self, now_ms: int) -> None:
        """Let the expiry of all idle producers begin now."""

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Write durably where a leader epoch begins."""

    def read(self, offset: int, max_bytes: int, upper: int) -> Records:
        """Return whole batches from ``offset`` on that end at or below ``upper``."""

    def read_part(self, offset: int, start: int, size: int) -> bytes:
        """Return up to ``size`` bytes of the batch that holds an offset, from its byte ``start`` on, unverified."""

    def slices(self, offset: int, max_bytes: int, upper: int) -> list[FileSlice]:
        """As :meth:`read`, but return positions in files."""

    def offset_for_timestamp(self, timestamp_ms: int, upper: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record below ``upper`` that is not older; None: there is none."""

    def first_within(self, times: TimeBounds, offset: int, upper: int, batches_max: int) -> TimesFound:
        """Return the first batch from ``offset`` on that may hold a record within these times.

        At most ``batches_max`` batches are searched.
        """

    def max_timestamp(self, upper: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the record with the newest timestamp below ``upper``; None: no record."""

    def end_after_cut(self, offset: int) -> int:
        """Return the log end offset that :meth:`truncate_to` would leave: it cuts between batches."""

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Truncate the log to an offset, durably: records at and above it are removed."""

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Remove all records and begin again at an offset, durably."""

    def advance_log_start(self, offset: int) -> object:
        """Move the log start offset, durably."""

    def apply_retention(self, now_ms: int, high_watermark: int) -> object:
        """Delete segments by the topic's retention, below the high watermark."""

    def purge_deleted(self, now_ms: int) -> object:
        """Remove the files of segments that were deleted some time ago."""


class Clock(Protocol):
    """Three clocks; see :mod:`raylog.actors.clock`."""

    @property
    def monotonic_ns(self) -> Callable[[], int]:
        """Monotonic time, in nanoseconds."""

    @property
    def since_boot_ns(self) -> Callable[[], int]:
        """Nanoseconds of a clock that cannot be set, and that runs on while the host is suspended."""

    @property
    def wall_ns(self) -> Callable[[], int]:
        """Nanoseconds since 1970."""


class Sync(Protocol):
    """Syncs the log to disk. After each sync it must call :meth:`ReplicaRunner.synced`."""

    @property
    def busy_since_ms(self) -> int | None:
        """Start of the running sync, by the monotonic clock; None = no sync runs."""

    @property
    def exclusive(self) -> AbstractContextManager[object]:
        """Held while the log is truncated, so that no sync runs meanwhile."""

    def kick(self) -> None:
        """Begin a sync soon: something was appended."""


class Keeper(Protocol):
    """The high watermark on disk."""

    @property
    def offset(self) -> int:
        """The high watermark on disk: records below it are committed."""

    def tick(self, now_ms: int, watermark: int, state: object) -> None:
        """Write the watermark if that is due; ``state`` is the partition's."""

    def lower(self, to: int) -> None:
        """Lower the watermark on disk to at most ``to``, durably. Raises KafkaStorageError."""


class ReplicaRequest(Answerable, Protocol):
    """A request of a client or a follower."""

    began_ns: int
    """Time of its arrival, by the monotonic clock."""
    opened_for: object
    """The log's configuration for which the bodies of its batches were opened; None = they were not."""
    append_ms: int
    """Time of the append in milliseconds since 1970, if the topic's records carry that time; else -1."""

    @property
    def payload(self) -> Records:
        """The record batches of the request."""

    @property
    def room_bytes(self) -> int:
        """Most bytes of its reply; 0 = its sender has to read earlier replies first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPorts:
    """Callbacks for what the runner cannot do itself. None of them feeds the runner before it returns."""

    send_fetch: Callable[[ev.SendFetch], None]
    propose_isr: Callable[[ev.ProposeIsr], None]
    propose_sleep: Callable[[ev.ProposeSleep], None]
    resign: Callable[[ev.ResignLeadership], None]
    rebuild: Callable[[RebuildLog], None]
    """Must arrange that the next start sets the log aside, and end the process."""
    role_changed: Callable[[ev.RoleChanged], None]
    verify: Callable[[ev.VerifyTransaction], None]
    """Must call :meth:`ReplicaRunner.transaction_confirmed` in any case, by the deadline."""
    soon: Callable[[Callable[[], None]], object]
    """Must call the function after the requests that have arrived meanwhile were handled."""
    fatal: Callable[[str], None]
    """Must end the process: the disk has failed, or there is a defect."""
    is_busy: Callable[[], bool] = lambda: False
    """Returns whether a role of the leader needs the partition awake."""
    tick_within: Callable[[int], None] = lambda _: None
    """Must arrange that the next tick comes within so many milliseconds."""
    needed_from: Callable[[], int | None] = lambda: None
    """Returns the lowest offset that a leader role still has to copy elsewhere; None = there is none."""
