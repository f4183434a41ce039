"""Selects old segments for removal: whole ones, from the start of the log.

A module of its own, because it is a pure rule, with tests of its own, which `PartitionLog` alone applies.
"""

from __future__ import annotations

from raylog.storage.log.config import LogConfig
from raylog.storage.segments.segment import Segment


def removable(segments: list[Segment], config: LogConfig, now_ms: int, high_watermark: int, log_start: int) -> int:
    """How many segments from the start may be removed; all of them only if the active one holds records.

    A segment that ends at or below the high watermark is removed for one of three reasons: it lies below the log start;
    its youngest record is older than retention.ms; or the log without it still holds retention.bytes. The age of a
    segment without a record that has a time, of markers alone, counts from `created_ms`.
    """
    left = sum(segment.size for segment in segments)
    count = 0
    for segment in segments:
        last = segment is segments[-1]
        if segment.next_offset > high_watermark or (last and segment.size == 0):
            break
        deleted = segment.next_offset <= log_start
        aged = config.deletes and config.retention_ms >= 0 and now_ms - _youngest_ms(segment) > config.retention_ms
        surplus = config.deletes and config.retention_bytes >= 0 and left - segment.size >= config.retention_bytes
        if not (deleted or aged or surplus) or (last and not aged):
            break
        left -= segment.size
        count += 1
    return count


def _youngest_ms(segment: Segment) -> int:
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
