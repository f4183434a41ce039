"""The virtual disk behind the ports of a replica's runner: its log, its syncs, the persisted watermark, and the clock.

One set per life of a process. The faults of the disk are drawn here, and the checkers see each write as it happens.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from raylog.base.epochs import EpochHistory
from raylog.base.errors import InvalidRequest, InvalidTxnState, OffsetOutOfRange
from raylog.base.ids import LeaderEpoch, Offset
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.times import TimeBounds, TimesFound
from raylog.storage.errors import DiskFull, StorageIoError
from raylog.storage.log.config import FileSlice, LogConfig
from raylog.storage.log.producer_state import ActiveProducer
from raylog.storage.segments.aborted import AbortedTxn, find
from tests.simulation.partition.disk import Entry, VirtualLog, chained
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.partition.replica import ReplicaProcess


class VirtualAppend(NamedTuple):
    """Result of an append."""

    first_offset: int
    end_offset: int
    duplicate: bool = False
    epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
    rewritten: tuple[list[Entry], int] | None = None


class VirtualClock:
    """The world's clock, for all three that a runner reads."""

    def __init__(self, world: World) -> None:
        """Use the world's clock."""
        self.monotonic_ns: Callable[[], int] = lambda: world.now_us * 1000
        self.since_boot_ns: Callable[[], int] = lambda: world.now_us * 1000
        self.wall_ns: Callable[[], int] = lambda: world.now_us * 1000


class OpenedLog:
    """A :class:`VirtualLog` as opened by one life of a process. One entry is one batch of one record and one byte."""

    def __init__(self, process: ReplicaProcess) -> None:
        """Recover, which syncs the kept part."""
        self._process = process
        self._simulation = process.simulation
        self._log: VirtualLog = process.log
        self._log.recover()
        self.config = LogConfig()
        self.opened_for: object = None
        self.retained_from = 0
        """The next retention drops committed entries below."""

    @property
    def oldest_ms(self) -> int:
        """Entries have no timestamps."""
        return -1

    @property
    def log_start_offset(self) -> int:
        """First offset."""
        return self._log.start

    @property
    def log_end_offset(self) -> int:
        """Next offset."""
        return self._log.end

    @property
    def synced_end_offset(self) -> int:
        """End of the part that survives a crash."""
        return self._log.durable_end

    @property
    def size_bytes(self) -> int:
        """Number of entries."""
        return len(self._log.entries)

    @property
    def epochs(self) -> EpochHistory:
        """The leader epochs."""
        return self._log.epochs

    @property
    def is_closed(self) -> bool:
        """An error never closes it."""
        return False

    @property
    def may_lack_producers(self) -> bool:
        """It is looked at each time."""
        return True

    @property
    def lacks_producers(self) -> bool:
        """Whether those before the start are not known."""
        return self._log.lacks_producers

    def producers_below(self, offset: int) -> bytes:
        """As the producers' state has them."""
        return self._log.producers.below(offset).to_bytes()

    def adopt_producers(self, snapshot: bytes) -> None:
        """Take the leader's."""
        self._log.adopt_producers(snapshot)

    def append_as_leader(self, payload: list[Entry], leader_epoch: int, now_ms: int) -> VirtualAppend:
        """Stamp a producer's batch in place and append it."""
        self._require_room()
        log, checks, (entry,) = self._log, self._simulation.checks, payload
        known = log.check_producer(entry.producer, entry.sequence)
        if known is not None:
            return VirtualAppend(known.first_offset, known.first_offset + 1, duplicate=True)
        offset = log.end
        chain = chained(checks.chain_before(log, offset), leader_epoch, entry.value)
        payload[0] = entry._replace(epoch=leader_epoch, chain=chain)
        log.append(payload, now_ms)
        checks.appended(self._process, offset, payload)
        return VirtualAppend(offset, offset + 1)

    def read_part(self, offset: int, start: int, size: int) -> bytes:
        """Refuse it: the entries of this simulation are no bytes."""
        raise InvalidRequest(f"The entry at offset {offset} has no bytes.")

    def transaction_of(self, payload: list[Entry]) -> None:
        """The producers of this simulation have no transactions."""

    def append_marker(self, marker: TxnMarker, leader_epoch: int, now_ms: int) -> VirtualAppend:
        """Refuse it: the producers of this simulation have no transactions."""
        raise InvalidTxnState(f"Producer {marker.producer_id} has no transaction here; end it where it has one.")

    @property
    def has_open_transactions(self) -> bool:
        """As the producers' state has it."""
        return bool(self._log.producers.transactions.open)

    def last_stable_offset(self, high_watermark: int) -> int:
        """As the producers' state has it."""
        first = self._log.producers.transactions.first_unstable(high_watermark)
        return high_watermark if first is None else min(first, high_watermark)

    def may_have_aborted(self, start: int) -> bool:
        """As the producers' state has it."""
        return bool(self._log.producers.transactions.aborted)

    def aborted_transactions(self, start: int, upper: int) -> list[tuple[int, int]]:
        """As the producers' state has them."""
        found: list[AbortedTxn] = []
        find(self._log.producers.transactions.aborted, start, upper, found)
        return [(entry.producer_id, entry.first_offset) for entry in found]

    def active_producers(self) -> list[ActiveProducer]:
        """As the producers' state has them."""
        return self._log.producers.active()

    def append_as_follower(self, payload: tuple[Entry, ...], now_ms: int) -> VirtualAppend:
        """Append a batch from the leader."""
        self._require_room()
        offset = self._log.end
        epochs = self._log.append(payload, now_ms)
        self._simulation.checks.appended(self._process, offset, payload)
        return VirtualAppend(offset, self._log.end, epochs=epochs)

    def count_producers_as_seen(self, now_ms: int) -> None:
        """As the producers' state does it."""
        self._log.producers.count_as_seen(now_ms)

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Write an epoch into the checkpoint."""
        self._require_space()
        self._log.assign_epoch(epoch, start_offset)

    def read(self, offset: int, max_bytes: int, upper: int) -> list[Entry]:
        """Return entries, at least one if there is one below ``upper``."""
        log = self._log
        if not log.start <= offset <= log.end:
            raise OffsetOutOfRange(f"{offset} is outside [{log.start}, {log.end})", start=log.start, end=log.end)
        return log.read(offset, upper, max(1, max_bytes))

    def slices(self, offset: int, max_bytes: int, upper: int) -> list[FileSlice]:
        """There are no files here."""
        return []

    def offset_for_timestamp(self, timestamp_ms: int, upper: int) -> tuple[int, int] | None:
        """Find an entry by its value, which stands for its time."""
        for offset in range(self._log.start, min(upper, self._log.end)):
            entry = self._log.entry(offset)
            if entry is not None and entry.value >= timestamp_ms:
                return offset, entry.value
        return None

    def first_within(self, times: TimeBounds, offset: int, upper: int, batches_max: int) -> TimesFound:
        """Look at entries, as batches, by their values."""
        for place in range(offset, min(upper, self._log.end)):
            entry = self._log.entry(place)
            if not batches_max:
                return TimesFound(place, is_found=False)
            batches_max -= 1
            if entry is not None and (times.low_ms or 0) <= entry.value < (times.end_ms or entry.value + 1):
                return TimesFound(place, is_found=True)
        return TimesFound(max(offset, min(upper, self._log.end)), is_found=False)

    def max_timestamp(self, upper: int) -> tuple[int, int] | None:
        """Find the last entry below ``upper``."""
        entry = self._log.entry(min(upper, self._log.end) - 1)
        return None if entry is None else (min(upper, self._log.end) - 1, entry.value)

    def end_after_cut(self, offset: int) -> int:
        """Each entry is a batch of its own."""
        return offset

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Truncate to ``offset``."""
        self._simulation.checks.truncating(self._process, offset)
        self._log.truncate(offset, now_ms)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Restart at ``offset``."""
        checks = self._simulation.checks
        # Entries below the new start count as dropped by retention; only those above it count as truncated.
        checks.truncating(self._process, max(self._log.start, offset))
        checks.deleted.moving(self._process.broker, offset, checks.committed.end)
        self._log.reset(offset)
        checks.committed.log_restarted(offset)

    def advance_log_start(self, offset: int) -> None:
        """Delete the records below ``offset``."""
        self._require_space()
        self._drop_below(offset)

    def apply_retention(self, now_ms: int, high_watermark: int) -> None:
        """Drop committed entries outside the retention limit."""
        self._drop_below(min(self.retained_from, high_watermark))

    def purge_deleted(self, now_ms: int) -> None:
        """There are no files here."""

    def _drop_below(self, to: int) -> None:
        if to > self._log.start:
            checks = self._simulation.checks
            checks.deleted.moving(self._process.broker, to, checks.committed.end)
            self._log.advance_start(to)

    def _require_space(self) -> None:
        if self._simulation.disk_is_full(self._process.broker):
            raise DiskFull("write", OSError(errno.ENOSPC, "the virtual disk is full"))

    def _require_room(self) -> None:
        self._require_space()
        if self._simulation.disk_refuses(self._process.broker):
            raise StorageIoError("append", OSError(errno.EIO, "the virtual disk refuses records"))


class VirtualSync:
    """Slow syncs, one at a time; writes during a sync get the next one."""

    def __init__(self, process: ReplicaProcess) -> None:
        """Idle until the first kick."""
        self._process = process
        self._log: VirtualLog = process.log
        self._is_wanted = False
        self.busy_since_ms: int | None = None
        self.exclusive = nullcontext()
        """A sync that spans a truncation ends without a result, which is equivalent to excluding it."""

    def kick(self) -> None:
        """Begin a sync, or note that another is needed."""
        process = self._process
        if self.busy_since_ms is not None:
            self._is_wanted = True
        elif process.alive and self._log.durable_end < self._log.end:
            self.busy_since_ms = process.world.now_ms
            process.world.after(process.simulation.sync_us(), self._ended, self._log.end, self._log.truncations)

    def _ended(self, end: int, truncations: int) -> None:
        process, log = self._process, self._log
        if process.simulation.hangs(process.broker, self._ended, end, truncations):
            return
        if process.asleep(self._ended, end, truncations):
            return
        self.busy_since_ms = None
        if truncations == log.truncations:
            log.durable_end = max(log.durable_end, end)
        if self._is_wanted:
            self._is_wanted = False
            self.kick()
        process.drive(process.runner.synced)


class VirtualKeeper:
    """The file with the high watermark."""

    def __init__(self, process: ReplicaProcess) -> None:
        """Load the value of an earlier life."""
        self._process = process

    @property
    def offset(self) -> int:
        """The persisted value."""
        return self._process.log.kept_watermark

    def tick(self, now_ms: int, watermark: int, state: object) -> None:
        """Write, when it is this replica's turn and the disk accepts it."""
        if self._process.simulation.keeps_watermark(self._process):
            self._process.log.keep_watermark(watermark)

    def lower(self, to: int) -> None:
        """Promise nothing from ``to`` on."""
        self._process.log.keep_watermark(min(to, self._process.log.kept_watermark))
