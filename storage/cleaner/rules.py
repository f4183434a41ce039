"""When a compacted log is cleaned, and how far: Kafka's rules of its log cleaner. Pure.

A log is a row of sealed segments and an active one, which is never cleaned. What lies below the point where the last
cleaning ended is *clean*, the rest is *dirty*. Used by the shell of a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raylog.storage.log.config import CompactionRules


class Stretch(NamedTuple):
    """A sealed segment: its offsets (the end is exclusive), bytes, and its largest timestamp in milliseconds."""

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int


class Cleanable(NamedTuple):
    """What a cleaning may work on."""

    segments: int
    """How many sealed segments, from the first one on."""
    dirty_bytes: int
    clean_bytes: int
    dirty_since_ms: int
    """The time of the first dirty record; 0 where there is none."""

    @property
    def dirty_ratio(self) -> float:
        """The dirty part of these bytes, 0 to 1."""
        total = self.dirty_bytes + self.clean_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(
    sealed: Sequence[Stretch],
    *,
    cleaned_to: int,
    dirty_since_ms: int,
    upper: int,
    now_ms: int,
    rules: CompactionRules,
) -> Cleanable:
    """Return which segments may be cleaned now: all committed, and none younger than the minimum lag.

    ``upper`` (exclusive): the last stable offset below the high watermark, or below the end of what is on disk if that
    is less. ``dirty_since_ms``: the time of the first record at or after ``cleaned_to`` that has one; 0 = none has.
    """
    count = dirty = clean = 0
    for segment in sealed:
        is_dirty = segment.next_offset > cleaned_to
        is_young = segment.max_timestamp > now_ms - rules.min_compaction_lag_ms
        if segment.next_offset > upper or (is_dirty and is_young and rules.min_compaction_lag_ms > 0):
            break
        count += 1
        if is_dirty:
            dirty += segment.size
        else:
            clean += segment.size
    return Cleanable(count, dirty, clean, dirty_since_ms if dirty else 0)


def is_due(found: Cleanable, now_ms: int, rules: CompactionRules) -> bool:
    """Return whether a cleaning is due: enough is dirty, or a record has been dirty for the maximum lag."""
    if found.dirty_bytes == 0:
        return False
    return found.dirty_ratio >= rules.min_cleanable_dirty_ratio or is_overdue(found.dirty_since_ms, now_ms, rules)


def are_tombstones_due(found: Cleanable, tombstones_due_ms: int, now_ms: int) -> bool:
    """Return whether tombstones that the last cleaning left may be removed now, even if nothing is dirty.

    ``tombstones_due_ms``: when the first of them may be, in milliseconds since 1970; 0 = it left none.
    """
    return found.segments > 0 and 0 < tombstones_due_ms <= now_ms


def is_overdue(dirty_since_ms: int, now_ms: int, rules: CompactionRules) -> bool:
    """Return whether a record of this time has waited for the maximum lag; the active segment is sealed for that."""
    return dirty_since_ms > 0 and now_ms - dirty_since_ms >= rules.max_compaction_lag_ms


def groups(sizes: Sequence[tuple[int, int]], *, bytes_max: int, offsets_max: int) -> list[int]:
    """Return how many neighbouring segments each cleaned one replaces, in order.

    ``sizes``: bytes and number of offsets of each. A segment that is larger than ``bytes_max`` makes a group alone.
    """
    found: list[int] = []
    room = span = 0
    for size, offsets in sizes:
        if found and size <= room and offsets <= span:
            found[-1] += 1
        else:
            found.append(1)
            room, span = bytes_max, offsets_max
        room -= size
        span -= offsets
    return found
