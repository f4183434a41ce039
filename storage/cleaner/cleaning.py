"""One cleaning of one log, in a thread of its own: reads sealed segments, and writes new ones with the records to keep.

Reads each byte twice: first for the keys, then to copy. The log's owner swaps the new segments in (`PartitionLog`), or
discards them if its log was cut meanwhile. May touch: the files of the log, but changes only its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from raylog.base.errors import RaylogError
from raylog.storage import filesystem
from raylog.storage.batch.header import HEADER_BYTES, BatchHeader, check_crc, parse_header
from raylog.storage.batch.marker import is_marker
from raylog.storage.batch.records import open_batch
from raylog.storage.cleaner.markers import Markers, states_coordinator
from raylog.storage.cleaner.rewriting import SegmentWriter, Tombstones
from raylog.storage.cleaner.rules import groups
from raylog.storage.cleaner.survivors import RANGE_RECORDS, RECORDS_MAX, KeyTable, Survivors
from raylog.storage.descriptors import open_file
from raylog.storage.errors import CorruptBatch, DiskFull, LogDamaged, NoRoomToClean, TooManyToClean, from_os_error
from raylog.storage.files import TEMPORARY, read_at
from raylog.storage.segments.aborted import AbortedTxn
from raylog.storage.segments.segment import RELATIVE_OFFSET_MAX, Segment

_READ_BYTES: Final = 1 << 20
SPILL: Final = "cleaner-keys" + TEMPORARY
MEMORY_BYTES: Final = 24 << 20
"""Memory for keys that are not in a file yet. All in all a cleaning takes at most 64 MB, for a log of any size."""


class CleaningAborted(Exception):
    """The owner has ended the cleaning, or a segment was removed. Caught where the cleaning was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningOrder:
    """What to clean, as the log was when it was ordered. Made by `LogCleaning.order_cleaning`."""

    folder: Path
    segments: tuple[Segment, ...]
    """Neighbouring sealed segments from the first of the log on. Their files are read under their names."""
    producers: frozenset[int]
    """The producers that the log knows. The last batch of each in these segments stays, without records if need be: a
    later one may be lost with the machine's power."""
    aborted: tuple[AbortedTxn, ...]
    """The aborted transactions with records in these segments: the records go, and supersede nothing."""
    cleaned_to: int
    """Where the cleaning before this one ended."""
    generation: int
    """The log's generation at the time of the order; another one means that the log was cut since."""
    segment_bytes: int
    index_interval: int
    now_ms: int
    delete_retention_ms: int

    @property
    def next_offset(self) -> int:
        """The offset up to which the log is clean afterwards."""
        return self.segments[-1].next_offset


@dataclass(slots=True)
class Cleaned:
    """Result of a cleaning. The files of `pairs` lie beside the log until its owner takes or discards them."""

    order: CleaningOrder
    """The order, as far as it was carried out."""
    pairs: list[tuple[tuple[Segment, ...], Segment]] = field(default_factory=list)
    """Segments of the log, and the one that replaces them."""
    last_batches: dict[int, int] = field(default_factory=dict)
    """Base offset of the last batch of each known producer in these segments."""
    last_markers: dict[int, int] = field(default_factory=dict)
    """Base offset of each known producer's last marker that a coordinator has decided."""
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    tombstones_due_ms: int = 0
    """When the first tombstone that stays may be removed, in milliseconds since 1970; 0 = none stays."""

    def discard(self) -> None:
        """Remove the files. Raises StorageIoError."""
        for _, segment in self.pairs:
            segment.remove_files()
        self.pairs = []


def clean(
    order: CleaningOrder,
    *,
    pace: Callable[[int], None] = lambda _: None,
    memory_bytes: int = MEMORY_BYTES,
    range_records: int = RANGE_RECORDS,
) -> Cleaned:
    """Carry out an order. `pace` gets the bytes of each read and write; it may sleep, or end it by CleaningAborted.

    A part of the order may be done, up to the end of a segment: the result names what was done. Raises CleaningAborted,
    TooManyToClean, LogDamaged, NoRoomToClean, StorageIoError, DescriptorsExhausted; no file is left then.
    """
    done = Cleaned(order)
    records = min(order.next_offset - order.segments[0].base_offset, RECORDS_MAX)
    try:
        with KeyTable(order.folder / SPILL, records, memory_bytes, range_records) as table:
            found = _survivors(done, table, pace)
            _rewrite(done.order, done, found, pace)
    except DiskFull as error:
        done.discard()
        raise NoRoomToClean(error) from error
    except BaseException:  # any error, or an end of the thread: no file may stay
        done.discard()
        raise
    return done


def _survivors(done: Cleaned, table: KeyTable, pace: Callable[[int], None]) -> Survivors:
    """Find the records that stay.

    An order with too many records is cut at the end of a segment: the rest is for the next cleaning.
    """
    order = done.order
    aborted = _Aborted(order.aborted)
    for place, segment in enumerate(order.segments):
        before = done.records_read
        if not _enter(segment, done, table, aborted, pace):
            if place == 0 or segment.base_offset <= order.cleaned_to:  # another cleaning would do the same again
                raise TooManyToClean(segment.path, RECORDS_MAX)
            # Keys of this segment that were entered already may supersede earlier ones: the segment stays whole.
            done.order, done.records_read = replace(order, segments=order.segments[:place]), before
            break
        done.bytes_read += segment.size
    return table.survivors()


def _enter(segment: Segment, done: Cleaned, table: KeyTable, aborted: _Aborted, pace: Callable[[int], None]) -> bool:
    """Enter the keys of a segment; False if there are too many records."""
    producers = done.order.producers
    for data, position, header in _batches(segment, pace):
        if header.producer_id in producers:
            done.last_batches[header.producer_id] = header.base_offset
        if header.is_control:
            if header.producer_id in producers and states_coordinator(data, position, header):
                done.last_markers[header.producer_id] = header.base_offset
            continue
        if done.records_read + header.record_count > RECORDS_MAX:
            return False
        done.records_read += header.record_count
        if aborted.holds(header):
            table.skip(header.record_count)
            continue
        try:
            keys = open_batch(data, position, header).column("keys")
        except CorruptBatch:  # as its producer sent it; its keys are not known, so it stays as it is
            keys = None
        if keys is None:
            table.add_without_keys(header.record_count)
        else:
            table.add(keys)
    return True


class _Aborted:
    """Finds the batches of aborted transactions, of a log that is read from its first batch on."""

    def __init__(self, entries: Sequence[AbortedTxn]) -> None:
        self._of: dict[int, list[AbortedTxn]] = {}
        """The aborted transactions of each producer, the last one first."""
        for entry in reversed(entries):
            self._of.setdefault(entry.producer_id, []).append(entry)

    def holds(self, header: BatchHeader) -> bool:
        """Whether the batch's transaction was aborted. To be called in the order of the log."""
        if not header.is_transactional or not self._of:
            return False
        left = self._of.get(header.producer_id, [])
        while left and left[-1].last_offset < header.base_offset:
            left.pop()
        return bool(left) and left[-1].first_offset <= header.base_offset


def _rewrite(order: CleaningOrder, done: Cleaned, found: Survivors, pace: Callable[[int], None]) -> None:
    sizes = [(segment.size, segment.next_offset - segment.base_offset) for segment in order.segments]
    tombstones = Tombstones(order.now_ms, order.delete_retention_ms)
    markers = Markers(order.folder, frozenset(done.last_markers.values()), tombstones)
    number = place = 0
    for count in groups(sizes, bytes_max=order.segment_bytes, offsets_max=RELATIVE_OFFSET_MAX):
        old = order.segments[place : place + count]
        place += count
        number = _rewrite_group(order, done, old, found, number, markers, pace)


def _rewrite_group(
    order: CleaningOrder,
    done: Cleaned,
    old: Sequence[Segment],
    found: Survivors,
    number: int,
    markers: Markers,
    pace: Callable[[int], None],
) -> int:
    """Write one cleaned segment; returns the number of the record after its last one."""
    first = old[0]
    writer = SegmentWriter(
        order.folder, first.base_offset, index_interval=order.index_interval, created_ms=first.created_ms
    )
    try:
        for segment in old:
            for data, position, header in _batches(segment, pace):
                is_last = done.last_batches.get(header.producer_id) == header.base_offset
                if is_marker(header):
                    whole = data[position : position + header.size]
                    writer.marker(whole, header, markers.left_of(whole, header, segment.next_offset, is_last=is_last))
                    continue
                chosen = b""
                if not header.is_control:
                    chosen = found.rows(number, header.record_count)
                    number += header.record_count
                before = writer.records
                writer.batch(data, position, header, chosen, markers.tombstones, is_last=is_last)
                markers.note(header, writer.records - before)
        new = writer.finish()
        pace(new.size)
    except BaseException:  # any error, or an end of the thread: no file may stay
        writer.discard()
        raise
    done.records_kept += writer.records
    if writer.tombstones_due_ms:
        done.tombstones_due_ms = min(done.tombstones_due_ms or writer.tombstones_due_ms, writer.tombstones_due_ms)
    done.bytes_written += new.size
    if writer.has_changed or len(old) > 1:
        done.pairs.append((tuple(old), new))
    else:
        writer.discard()
    return number


def _batches(segment: Segment, pace: Callable[[int], None]) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Each batch of a sealed segment, as bytes, position in them, and header; its CRC is checked."""
    try:
        fd = open_file(segment.path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise CleaningAborted(f"{segment.path} was removed meanwhile") from error
    except OSError as error:
        raise from_os_error(f"open {segment.path}", error) from error
    try:
        position, expected = 0, segment.base_offset
        room = _READ_BYTES
        while position < segment.size:
            data = _read(fd, segment, position, min(room, segment.size - position))
            pace(len(data))
            used, room = 0, _READ_BYTES
            while used + HEADER_BYTES <= len(data):
                header = _header(segment, data, position, used)
                if header.base_offset != expected:  # no CRC covers it
                    raise LogDamaged(segment.path, position + used, expected, f"offset {expected} should follow here")
                if position + used + header.size > segment.size:
                    raise LogDamaged(segment.path, position + used, header.base_offset, "a batch is cut off")
                if used + header.size > len(data):
                    room = max(room, header.size)
                    break
                try:
                    check_crc(data, used, header)
                except CorruptBatch as error:
                    raise LogDamaged(segment.path, position + used, header.base_offset, error.reason) from error
                yield data, used, header
                expected = header.next_offset
                used += header.size
            if position + len(data) == segment.size and used < len(data):
                raise LogDamaged(segment.path, position + used, segment.base_offset, "a header is cut off")
            position += used
    finally:
        filesystem.close(fd)


def _read(fd: int, segment: Segment, position: int, size: int) -> bytes:
    try:
        data = read_at(fd, size, position)
    except OSError as error:
        raise from_os_error(f"read {segment.path}", error) from error
    if len(data) < size:
        raise LogDamaged(segment.path, position + len(data), segment.base_offset, "the file is too short")
    return data


def _header(segment: Segment, data: bytes, position: int, used: int) -> BatchHeader:
    try:
        return parse_header(data, used)
    except CorruptBatch as error:
        raise LogDamaged(segment.path, position + used, segment.base_offset, error.reason) from error


def discard_quietly(cleaned: Cleaned) -> None:
    """Remove the files of a cleaning that is not wanted; what stays is removed by the next recovery."""
    try:
        cleaned.discard()
    except RaylogError:
        pass
