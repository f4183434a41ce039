"""The segments of a log: finds batches in them, by offset and by timestamp, verifies, replaces and removes them.

Called by `PartitionLog`, which holds a `SegmentList`. The functions get a sorted list of segments, and change only the
segments' in-memory state.
`upper` is always an exclusive offset, usually the high watermark: a batch is visible when it ends at or below it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raylog.base.epochs import EpochHistory
from raylog.storage import filesystem
from raylog.storage.batch.header import HEADER_BYTES, BatchHeader, check_crc, iter_headers, parse_header
from raylog.storage.batch.records import decode_batch
from raylog.storage.batch.rewriting import NO_APPEND_TIME, Rewritten, append_time_of
from raylog.storage.batch.times import TimeBounds, TimesFound
from raylog.storage.errors import CorruptBatch, LogDamaged
from raylog.storage.log.config import FileSlice
from raylog.storage.log.recovery import check_epoch, remake_aborted
from raylog.storage.segments.aborted import AbortedTxn, find
from raylog.storage.segments.replacing import DeletedFiles, swap_in
from raylog.storage.segments.segment import NO_TIMESTAMP, Segment

logger = logging.getLogger(__name__)


class Span(NamedTuple):
    """Whole batches in one segment: `length` bytes at byte `position`, from `first_offset` up to `next_offset`."""

    segment: Segment
    position: int
    length: int
    first_offset: int
    next_offset: int


class RecentSegments:
    """The sealed segments used last: only these keep their file open and their indexes in memory."""

    OPEN_MAX = 16

    def __init__(self) -> None:
        self._recent: dict[int, Segment] = {}  # by base offset, least recent first

    def touch(self, segment: Segment) -> None:
        """Mark the segment as used; the least recently used one may be released."""
        if not segment.sealed:
            return
        self._recent.pop(segment.base_offset, None)
        self._recent[segment.base_offset] = segment
        while len(self._recent) > self.OPEN_MAX:
            self._recent.pop(next(iter(self._recent))).release()

    def forget(self, segment: Segment) -> None:
        """Forget the segment: it is removed, or takes appends again."""
        self._recent.pop(segment.base_offset, None)

    def clear(self) -> None:
        """Forget all segments."""
        self._recent.clear()

    def release_others(self, segments: list[Segment]) -> None:
        """Close those of `segments` that are not among the recent ones, after a walk over all."""
        for segment in segments:
            if segment.sealed and segment.base_offset not in self._recent:
                segment.release()


def place_of(segments: list[Segment], offset: int) -> int:
    """The list index of the segment whose range holds `offset`."""
    return max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)


def spans(segments: list[Segment], offset: int, max_bytes: int, upper: int) -> list[Span]:
    """Whole batches from the one that holds `offset` on; `segments` are the log's, in order.

    At least one batch if one ends at or below `upper`, then as many as fit into `max_bytes`.
    """
    found: list[Span] = []
    left = max_bytes
    for segment in segments[place_of(segments, offset) :]:
        if offset >= upper or offset >= segment.next_offset:
            break
        position, first = 0, segment.base_offset
        known = segment.position_of(offset)
        if known is not None:
            position, first = known, offset
        elif offset > first:
            position, header = segment.locate(offset)
            first = header.base_offset
        try:
            end, after = segment.limit(position, first, left, upper, at_least_one=not found)
        except LogDamaged:
            if not found:
                raise
            break
        if end == position:
            break
        found.append(Span(segment, position, end - position, first, after))
        left -= end - position
        offset = segment.next_offset
        if left <= 0 or end != segment.size:
            break
    return found


def places(found: list[Span]) -> list[FileSlice]:
    """Spans as file positions, for readers who open the files themselves."""
    slices = []
    for segment, position, length, _, next_offset in found:
        status = filesystem.fstat(segment.fd)
        slices.append(FileSlice(segment.path, position, length, next_offset, status.st_dev, status.st_ino))
    return slices


def whole_batch(segments: list[Segment], offset: int) -> Span:
    """The one batch that holds `offset`."""
    segment = segments[place_of(segments, offset)]
    position, header = segment.locate(offset)
    return Span(segment, position, header.size, header.base_offset, header.next_offset)


def verify(span: Span, data: bytes, epochs: EpochHistory) -> int:
    """How many bytes of `data`, read from `span`, are whole batches with right CRCs, offsets and epochs.

    All of them, or those before the first damaged batch; LogDamaged if the first batch is damaged.
    """
    path, position, expected, end = span.segment.path, span.position, span.first_offset, 0
    reason = "a batch is cut off"
    try:
        for found, header in iter_headers(data):
            if header.base_offset != expected:
                raise CorruptBatch(f"it begins at offset {header.base_offset}, not at {expected}")
            check_crc(data, found, header)
            known = epochs.entries
            if known and (header.partition_leader_epoch != known[-1][0] or header.base_offset < known[-1][1]):
                check_epoch(epochs, header)  # not simply a batch of the latest epoch
            expected, end = header.next_offset, found + header.size
    except CorruptBatch as error:
        reason = error.reason
    if not end:
        raise LogDamaged(path, position, expected, reason, next_offset=behind(span.segment, position, expected))
    return end


def behind(segment: Segment, position: int, offset: int) -> int:
    """The first offset that can be read again after the damaged batch at `position`, which begins at `offset`.

    If the batch's header agrees with what follows it, that is the next batch; else the next one that the index knows,
    or the next segment.
    """
    end = segment.next_offset
    for place, following in _candidates(segment, position, offset):
        if place == segment.size and following == end:
            return end
        try:
            if parse_header(segment.read(place, HEADER_BYTES)).base_offset == following:
                return following
        except (CorruptBatch, LogDamaged):
            continue
    return end


def _candidates(segment: Segment, position: int, offset: int) -> Iterator[tuple[int, int]]:
    """Where batches may begin after a damaged one, as (position, offset), nearest first."""
    try:
        header = parse_header(segment.read(position, HEADER_BYTES))
        if header.base_offset <= offset < header.next_offset:
            yield position + header.size, header.next_offset
    except (CorruptBatch, LogDamaged):
        pass  # nothing in it can be trusted
    index = segment.offset_index()
    for relative, place in zip(index.offsets, index.positions, strict=True):
        if place > position and segment.base_offset + relative > offset:
            yield place, segment.base_offset + relative


def offset_for_timestamp(segments: list[Segment], timestamp: int, start: int, upper: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after `start` that is not older than `timestamp`, or None."""
    for segment in segments:
        if segment.next_offset <= start or segment.max_timestamp < timestamp:
            continue
        first = max(start, segment.base_offset + segment.indexes()[1].start_for(timestamp))
        if first >= segment.next_offset:
            continue
        for position, header in segment.walk(segment.locate(first)[0]):
            if header.next_offset > upper:
                return None
            if header.max_timestamp < timestamp or header.is_control:
                continue
            for offset, moment in _times(segment, position, header):
                if moment >= timestamp and offset >= start:
                    return offset, moment
    return None


def _times(segment: Segment, position: int, header: BatchHeader) -> Iterable[tuple[int, int]]:
    """(offset, timestamp) of each record of a batch; nothing for a body that does not open. Raises LogDamaged."""
    data = segment.read(position, header.size)
    try:
        check_crc(data, 0, header)
    except CorruptBatch as error:
        after = behind(segment, position, header.base_offset)
        raise LogDamaged(segment.path, position, header.base_offset, error.reason, next_offset=after) from error
    try:
        columns = decode_batch(data, 0, header, verify=False)
    except CorruptBatch:  # as its producer sent it: readers get the error where they come to it
        return ()
    return zip(columns.offsets, columns.timestamps, strict=True)


def first_within(segments: list[Segment], times: TimeBounds, offset: int, upper: int, batches_max: int) -> TimesFound:
    """The first batch from `offset` on, below `upper`, that may hold a record within these times."""
    for segment in segments[place_of(segments, offset) :]:
        if offset >= upper:
            break
        if segment.next_offset <= offset or not segment.size:
            continue
        for position, header in segment.walk(*_from_batch(segment, offset)):
            if header.next_offset > upper:
                return TimesFound(max(offset, header.base_offset), is_found=False)
            if not batches_max:
                return TimesFound(header.base_offset, is_found=False)
            batches_max -= 1
            if not header.is_control:
                shown = times.bytes_to_show(header)
                body = segment.read(position + HEADER_BYTES, min(shown, header.size - HEADER_BYTES)) if shown else b""
                if not times.exclude(header, body):
                    return TimesFound(max(offset, header.base_offset), is_found=True)
            offset = header.next_offset
    return TimesFound(offset, is_found=False)


def _from_batch(segment: Segment, offset: int) -> tuple[int, int]:
    """Where to walk from to meet the batch that holds `offset` first, and the offset there."""
    if offset <= segment.base_offset:
        return 0, segment.base_offset
    position, header = segment.locate(offset)
    return position, header.base_offset


def max_timestamp(segments: list[Segment], start: int, upper: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the largest timestamp; None for an empty range."""
    largest = NO_TIMESTAMP
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= upper:
            continue
        if segment.base_offset >= start:
            largest = max(largest, segment.largest_timestamp(upper))
            continue
        for position, header in segment.walk(segment.locate(start)[0]):
            if header.next_offset > upper:
                break
            if header.is_control:
                continue
            found = header.max_timestamp
            if header.base_offset < start:  # part of this batch was deleted: search the rest
                pairs = _times(segment, position, header)
                found = max((moment for offset, moment in pairs if offset >= start), default=NO_TIMESTAMP)
            largest = max(largest, found)
    return None if largest == NO_TIMESTAMP else offset_for_timestamp(segments, largest, start, upper)


class SegmentList(list[Segment]):
    """The segments of one log in the order of their offsets, without a gap; the last one takes the appends.

    Of the sealed ones only those that were used last keep their file open. Files are replaced and removed here alone,
    so none that was removed stays open. What readers may see of it is for `PartitionLog` to decide.
    """

    def __init__(self, segments: Iterable[Segment], deleted: DeletedFiles) -> None:
        """Take over the segments of a recovery."""
        super().__init__(segments)
        self.recent = RecentSegments()
        self.deleted = deleted

    def read(self, offset: int, max_bytes: int, upper: int, epochs: EpochHistory, *, verified: bool) -> bytes:
        """Whole batches from the one that holds `offset`, all ending at or below `upper`: see `PartitionLog.read`."""
        parts: list[bytes] = []
        for span in self.spans(offset, max_bytes, upper):
            try:
                data = span.segment.read(span.position, span.length)
                good = verify(span, data, epochs) if verified else len(data)
            except LogDamaged:
                if not parts:
                    raise
                break
            parts.append(data if good == len(data) else data[:good])
            if good < len(data):
                break
        if not parts and offset < upper:
            # The batch claims to end beyond `upper`. That is rare enough to verify the header: a reader must not wait
            # without a limit for damaged bytes.
            span = whole_batch(self, offset)
            verify(span, span.segment.read(span.position, span.length), epochs)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def spans(self, offset: int, max_bytes: int, upper: int) -> list[Span]:
        """As the function; the segments are in use then. LogDamaged names the offset that can be read again."""
        try:
            found = spans(self, offset, max_bytes, upper)
        except LogDamaged as damage:
            raise self._located(damage, offset) from damage
        for span in found:
            self.recent.touch(span.segment)
        return found

    def _located(self, damage: LogDamaged, offset: int) -> LogDamaged:
        """The same error, with the first offset after `offset` that can be read again."""
        if damage.next_offset > offset:
            return damage
        segment = self[place_of(self, offset)]
        after = behind(segment, damage.position, offset) if damage.path == str(segment.path) else -1
        return LogDamaged(damage.path, damage.position, offset, damage.reason, next_offset=after)

    def read_part(self, offset: int, start: int, size: int) -> bytes:
        """Up to `size` bytes of the batch that holds `offset`, from its byte `start` on; fewer at its end."""
        span = whole_batch(self, offset)
        self.recent.touch(span.segment)
        return span.segment.read(span.position + start, max(0, min(size, span.length - start)))

    def append_time_at(self, offset: int) -> Rewritten | None:
        """The time that the record at `offset` got when it was appended; None if its batch has no such time."""
        span = whole_batch(self, offset)
        append_ms = append_time_of(parse_header(span.segment.read(span.position, HEADER_BYTES)))
        return None if append_ms == NO_APPEND_TIME else Rewritten(b"", append_ms)

    def offset_for_timestamp(self, timestamp_ms: int, start: int, upper: int) -> tuple[int, int] | None:
        """As the function, which opens any segment; only those used last stay open."""
        found = offset_for_timestamp(self, timestamp_ms, start, upper)
        self.recent.release_others(self)
        return found

    def first_within(self, times: TimeBounds, offset: int, upper: int, batches_max: int) -> TimesFound:
        """As the function, which opens any segment; only those used last stay open."""
        found = first_within(self, times, offset, upper, batches_max)
        self.recent.release_others(self)
        return found

    def max_timestamp(self, start: int, upper: int) -> tuple[int, int] | None:
        """As the function, which opens any segment; only those used last stay open."""
        found = max_timestamp(self, start, upper)
        self.recent.release_others(self)
        return found

    def aborted_between(self, start: int, upper: int, newest: list[AbortedTxn]) -> list[AbortedTxn]:
        """The aborted transactions with offsets in [start, upper), by their markers; `newest`: of the last segment."""
        found: list[AbortedTxn] = []
        for segment in self[place_of(self, start) : -1]:
            if segment.has_aborted:
                self.recent.touch(segment)
                if find(self.aborted_of(segment), start, upper, found):
                    return found
        find(newest, start, upper, found)
        return found

    def aborted_of(self, segment: Segment) -> list[AbortedTxn]:
        """The aborted transactions of a segment; a damaged file is rebuilt: the batches have all that it holds."""
        try:
            return segment.aborted()
        except LogDamaged as damage:
            logger.warning("%s; it is made again from the batches", damage)
            remake_aborted([each for each in self if each.base_offset <= segment.base_offset], {segment.base_offset})
            return segment.aborted()

    def cut_at(self, offset: int) -> tuple[int, int, int]:
        """For a cut at `offset`: the list index of the segment, the position there, and the log's end after that."""
        place = place_of(self, offset)
        position, header = self[place].locate(offset)
        return place, position, header.base_offset

    def cut(self, place: int, position: int, end: int) -> None:
        """Cut the segment at list index `place` at byte `position`, offset `end`; it takes the appends then."""
        for later in reversed(self[place + 1 :]):
            self.recent.forget(later)
            later.remove_files()
        del self[place + 1 :]
        segment = self[place]
        self.recent.forget(segment)
        segment.cut(position, end)
        segment.unseal()

    def remove_one(self, segment: Segment, due_ms: int) -> None:
        """Rename the files of a segment, which are unlinked from `due_ms` on. After an error the segment stays."""
        self.deleted.add(segment, due_ms)
        self.recent.forget(segment)
        self.remove(segment)

    def replace(self, old: tuple[Segment, ...], new: Segment, due_ms: int) -> None:
        """Put a new segment in the place of sealed ones, which hold the same offsets. See `swap_in`."""
        swap_in(new, old, self.deleted, due_ms)
        at = self.index(old[0])
        for segment in old:
            self.recent.forget(segment)
        self[at : at + len(old)] = [new]
        self.recent.touch(new)
