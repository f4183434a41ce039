"""Orders the cleaning of a log's sealed segments, and takes the result. Owned by the replica's shell.

All calls in the log's thread; the cleaning itself (`storage/cleaner/cleaning.py`) runs in another, reads files by their
names, and writes only its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from raylog.base.errors import RaylogError
from raylog.storage.cleaner.cleaning import Cleaned, CleaningOrder
from raylog.storage.cleaner.rules import Cleanable, Stretch, are_tombstones_due, cleanable, is_due, is_overdue
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.segments.segment import Segment

UNDATED_MS = 0
"""No record has a time. Kafka takes no earlier one for a time either."""


class LogCleaning:
    """The cleanings of one log. How far they came is kept by the log, which lowers it with every cut."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._ages, self._ages_of = Ages(), -1
        self.dirty_ratio = 0.0
        """Dirty share of the cleanable bytes, 0 to 1, when a cleaning was last ordered; 0 after a cleaning."""

    def cleanable(self, high_watermark: int, now_ms: int, rules: CompactionRules) -> Cleanable:
        """What a cleaning could work on now. Raises LogDamaged, StorageIoError."""
        log = self._log
        log.require_open()
        return cleanable(
            [_stretch(segment) for segment in log.segments[:-1]],
            cleaned_to=log.cleaned_to,
            dirty_since_ms=self._dirty_since_ms(),
            upper=log.last_stable_offset(min(high_watermark, log.synced_end_offset)),
            now_ms=now_ms,
            rules=rules,
        )

    def order_cleaning(self, high_watermark: int, now_ms: int, rules: CompactionRules) -> CleaningOrder | None:
        """The order for a cleaning; None while none is due. Raises LogDamaged, StorageIoError, DiskFull.

        The active segment is sealed first if its first record with a time has waited for the maximum lag.
        """
        log = self._log
        log.require_open()
        active = log.segments[-1]
        if is_overdue(self._first_ms(active), now_ms, rules):
            log.roll(now_ms)
        found = self.cleanable(high_watermark, now_ms, rules)
        self.dirty_ratio = found.dirty_ratio
        if not is_due(found, now_ms, rules) and not are_tombstones_due(found, log.tombstones_due_ms, now_ms):
            return None
        first, behind = log.segments[0], log.segments[found.segments]
        return CleaningOrder(
            folder=log.folder,
            segments=tuple(log.segments[: found.segments]),
            producers=frozenset(log.producers.producers),
            aborted=tuple(log.aborted_between(first.base_offset, behind.base_offset)),
            cleaned_to=log.cleaned_to,
            generation=log.generation,
            segment_bytes=log.config.segment_bytes,
            index_interval=log.config.index_interval_bytes,
            now_ms=now_ms,
            delete_retention_ms=rules.delete_retention_ms,
        )

    def take_cleaned(self, cleaned: Cleaned, now_ms: int) -> bool:
        """Put cleaned segments in the place of the old ones; False, and nothing done, if the log was cut meanwhile.

        Raises StorageIoError, NoRoomToClean; the log is then closed, and its recovery finishes what was decided.
        """
        log, order = self._log, cleaned.order
        log.require_open()
        known = {id(segment) for segment in log.segments[:-1]}
        if order.generation != log.generation or not all(id(segment) in known for segment in order.segments):
            return False
        log.replace_segments(cleaned.pairs, now_ms)
        cleaned.pairs = []
        log.cleaned_to, self.dirty_ratio = order.next_offset, 0.0
        log.tombstones_due_ms = cleaned.tombstones_due_ms
        with suppress(RaylogError):  # without them the next incarnation only cleans sooner
            log.checkpoints.write_cleaned_to(log.cleaned_to)
            log.checkpoints.write_tombstones_due(log.tombstones_due_ms)
        return True

    @property
    def has_dirty_records(self) -> bool:
        """Whether records that have a time wait for a cleaning, in sealed segments or in the active one."""
        since = self._log.cleaned_to
        return any(each.next_offset > since and each.max_timestamp > UNDATED_MS for each in self._log.segments)

    def _dirty_since_ms(self) -> int:
        """The time of the first dirty record in a sealed segment that has one; UNDATED_MS = there is none."""
        log = self._log
        sealed = log.segments[:-1]
        dirty = (self._first_ms(segment) for segment in sealed if segment.next_offset > log.cleaned_to)
        first_ms = next((moment for moment in dirty if moment > UNDATED_MS), UNDATED_MS)
        self._ages.keep_only(log.segments)
        log.segments.recent.release_others(sealed)
        return first_ms

    def _first_ms(self, segment: Segment) -> int:
        if self._ages_of != self._log.generation:  # the log was cut: a segment may have lost that record
            self._ages, self._ages_of = Ages(), self._log.generation
        return self._ages.first_ms(segment)


def _stretch(segment: Segment) -> Stretch:
    return Stretch(segment.base_offset, segment.next_offset, segment.size, segment.max_timestamp)


class Ages:
    """How old the records of a segment are, for `max.compaction.lag.ms`: the time of the first one that has a time.

    A segment may begin with batches without a time: markers of transactions, fillers, batches that a cleaner has
    emptied. So its first batch says nothing. The headers are read once, up to the first record with a time.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[int, tuple[Segment, int]] = {}
        """The segments whose first time was read, by base offset."""

    def first_ms(self, segment: Segment) -> int:
        """The time of the first record that has one, in milliseconds since 1970; UNDATED_MS where none has.

        Raises LogDamaged, StorageIoError, DescriptorsExhausted.
        """
        if segment.max_timestamp <= UNDATED_MS:
            return UNDATED_MS
        known = self._known.get(segment.base_offset)
        if known is None or known[0] is not segment:
            times = (header.max_timestamp for _, header in segment.walk(0) if header.max_timestamp > UNDATED_MS)
            known = self._known[segment.base_offset] = (segment, next(times, UNDATED_MS))
        return known[1]

    def keep_only(self, segments: Iterable[Segment]) -> None:
        """Forget all segments but these."""
        wanted = {id(segment) for segment in segments}
        self._known = {base: entry for base, entry in self._known.items() if id(entry[0]) in wanted}
