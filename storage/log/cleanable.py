"""The part of a partition log that orders the cleaning of its sealed segments, and takes the result.

`PartitionLog` adds the rest. All calls in the owner's thread; the cleaning itself (`storage/cleaner/cleaning.py`) runs
in another, reads files by their names, and writes only its own.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from raylog.base.errors import RaylogError
from raylog.storage.cleaner.ages import UNDATED_MS, Ages, has_dated
from raylog.storage.cleaner.cleaning import Cleaned, CleaningOrder
from raylog.storage.cleaner.rules import (
    Cleanable,
    CompactionRules,
    Stretch,
    are_tombstones_due,
    cleanable,
    is_due,
    is_overdue,
)
from raylog.storage.cleaner.swap import swap_in
from raylog.storage.errors import DiskFull, NoRoomToClean
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.retention import DeletedFiles
from raylog.storage.log.segment import Segment
from raylog.storage.transactions.log import TransactionalLog


class CleanableLog(TransactionalLog):
    """See the module."""

    synced_end_offset: int
    cleaned_to: int
    """Where the last cleaning ended. Only the choice of the time for the next one depends on it."""
    tombstones_due_ms: int
    """When the first tombstone that the last cleaning left may be removed, in ms since 1970; 0 = it left none."""
    dirty_ratio: float = 0.0
    """Dirty share of the cleanable bytes, 0 to 1, when a cleaning was last ordered; 0 after a cleaning."""
    _ages: Ages
    _checkpoints: Checkpoints
    _deleted: DeletedFiles
    _generation: int
    _lock: threading.Lock

    if TYPE_CHECKING:

        def _roll(self, now_ms: int) -> None:
            """Seal the active segment and begin another one; `PartitionLog` has it."""

    @property
    def oldest_ms(self) -> int:
        """Largest timestamp in the oldest segment, in milliseconds since 1970; -1 = the log has no record."""
        return self.segments[0].max_timestamp if self.log_start_offset < self.log_end_offset else -1

    def purge_deleted(self, now_ms: int) -> int:
        """Remove files whose delay has passed; returns their number."""
        return self._deleted.purge(now_ms)

    def cleanable(self, high_watermark: int, now_ms: int, rules: CompactionRules) -> Cleanable:
        """What a cleaning could work on now. Raises LogDamaged, StorageIoError."""
        self._require_open()
        return cleanable(
            [_stretch(segment) for segment in self.segments[:-1]],
            cleaned_to=self.cleaned_to,
            dirty_since_ms=self._dirty_since_ms(),
            upper=self.last_stable_offset(min(high_watermark, self.synced_end_offset)),
            now_ms=now_ms,
            rules=rules,
        )

    def order_cleaning(self, high_watermark: int, now_ms: int, rules: CompactionRules) -> CleaningOrder | None:
        """The order for a cleaning; None while none is due. Raises LogDamaged, StorageIoError, DiskFull.

        The active segment is sealed first if its first record with a time has waited for the maximum lag.
        """
        self._require_open()
        active = self.segments[-1]
        if is_overdue(self._ages.first_ms(active), now_ms, rules):
            self._roll(now_ms)
        found = self.cleanable(high_watermark, now_ms, rules)
        self.dirty_ratio = found.dirty_ratio
        if not is_due(found, now_ms, rules) and not are_tombstones_due(found, self.tombstones_due_ms, now_ms):
            return None
        first, behind = self.segments[0], self.segments[found.segments]
        return CleaningOrder(
            folder=self.folder,
            segments=tuple(self.segments[: found.segments]),
            producers=frozenset(self.producers.producers),
            aborted=tuple(self.aborted_between(first.base_offset, behind.base_offset)),
            cleaned_to=self.cleaned_to,
            generation=self._generation,
            segment_bytes=self.config.segment_bytes,
            index_interval=self.config.index_interval_bytes,
            now_ms=now_ms,
            delete_retention_ms=rules.delete_retention_ms,
        )

    def take_cleaned(self, cleaned: Cleaned, now_ms: int) -> bool:
        """Put cleaned segments in the place of the old ones; False, and nothing done, if the log was cut meanwhile.

        Raises StorageIoError, NoRoomToClean; the log is then closed, and its recovery finishes what was decided.
        """
        self._require_open()
        order = cleaned.order
        with self._lock:
            known = {id(segment) for segment in self.segments[:-1]}
            if order.generation != self._generation or not all(id(segment) in known for segment in order.segments):
                return False
            for old, new in cleaned.pairs:
                self._replace(old, new, now_ms + self.config.file_delete_delay_ms)
            cleaned.pairs = []
        self.cleaned_to, self.dirty_ratio = order.next_offset, 0.0
        self.tombstones_due_ms = cleaned.tombstones_due_ms
        with suppress(RaylogError):  # without them the next incarnation only cleans sooner
            self._checkpoints.write_cleaned_to(self.cleaned_to)
            self._checkpoints.write_tombstones_due(self.tombstones_due_ms)
        return True

    def _lower_cleaned_to(self, end: int) -> None:
        """Lower `cleaned_to` to a cut at `end`, durably: what is appended there later is dirty. Raises DiskFull."""
        if self.cleaned_to > end:
            self._checkpoints.write_cleaned_to(end)
            self.cleaned_to = end

    def _replace(self, old: tuple[Segment, ...], new: Segment, due_ms: int) -> None:
        try:
            swap_in(new, old, self._deleted, due_ms)
        except RaylogError as error:
            self._closed_because = "the swap of a cleaned segment failed halfway"
            if isinstance(error, DiskFull):
                raise NoRoomToClean(error) from error
            raise
        at = self.segments.index(old[0])
        for segment in old:
            self._recent.forget(segment)
        self.segments[at : at + len(old)] = [new]
        self._recent.touch(new)

    @property
    def has_dirty_records(self) -> bool:
        """Whether records that have a time wait for a cleaning, in sealed segments or in the active one."""
        return has_dated(self.segments, self.cleaned_to)

    def _dirty_since_ms(self) -> int:
        """The time of the first dirty record in a sealed segment that has one; UNDATED_MS = there is none."""
        sealed = self.segments[:-1]
        dirty = (self._ages.first_ms(segment) for segment in sealed if segment.next_offset > self.cleaned_to)
        first_ms = next((moment for moment in dirty if moment > UNDATED_MS), UNDATED_MS)
        self._ages.keep_only(self.segments)
        self._recent.release_others(sealed)
        return first_ms


def _stretch(segment: Segment) -> Stretch:
    return Stretch(segment.base_offset, segment.next_offset, segment.size, segment.max_timestamp)
