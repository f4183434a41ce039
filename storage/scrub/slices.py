"""Reads a slice of a segment again, to find bytes that have changed on the disk. Runs in a thread of its own.

Ordered by the owner of the log (`log_scrub.py`), which takes the result: this reads files by their names, and writes
none of the log's. The owner looks at what was found once more: the log may have been cut, cleaned or removed meanwhile.

`scrub-checkpoint` is how far the passes are: the end of the last one, and the segment where the present one goes on.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from raylog.base.epochs import EpochHistory
from raylog.storage import filesystem
from raylog.storage.batch.header import CRC_START, HEADER_BYTES, BatchHeader, check_crc, parse_header
from raylog.storage.descriptors import open_file
from raylog.storage.errors import CorruptBatch, LogDamaged, from_os_error
from raylog.storage.files import read_at, read_bytes, read_text, write_atomically
from raylog.storage.log.recovery import check_epoch
from raylog.storage.scrub.plan import Passes, Place
from raylog.storage.segments.aborted import read_aborted
from raylog.storage.segments.index import IndexDamaged, OffsetIndex, TimeIndex, places_between, times_between
from raylog.storage.segments.segment import INDEX, NO_TIMESTAMP, TIME_INDEX, TXN_INDEX

CHECKPOINT: Final = "scrub-checkpoint"
CHUNK_BYTES: Final = 64 << 10
"""Bytes read at once: between two chunks the event loop gets its turn, and a chunk holds few headers."""
LARGE_CHUNK_BYTES: Final = 1 << 20


class ScrubOrder(NamedTuple):
    """A slice: batches of a segment from `place` on, up to about `size` bytes, of those that were synced."""

    path: Path
    place: Place
    size: int
    end: int
    """Byte of the file up to which it holds synced batches."""
    last: int
    """Offset after the last of them."""
    newest: int
    """Largest timestamp of the batches before; NO_TIMESTAMP = there are none."""
    epochs: tuple[tuple[int, int], ...]
    log_start: int
    is_sealed: bool
    """Whether it has indexes on the disk."""
    has_aborted: bool


class Scrubbed(NamedTuple):
    """What was found in a slice."""

    place: Place
    """Where the slice ended."""
    newest: int
    """Largest timestamp of the segment's batches up to there."""
    bytes_read: int
    damage: LogDamaged | None = None
    """Batches that are not as they were written."""
    wrong_index: str = ""
    """Why the indexes of the segment have to be made again; empty = they agree with the batches."""
    wrong_aborted: bool = False
    """Whether the file of aborted transactions has to be made again."""


def scrub(order: ScrubOrder) -> Scrubbed:
    """Read a slice. Raises StorageIoError, DescriptorsExhausted."""
    place = order.place
    begins = place.position == 0
    wrong_index = _wrong_files(order) if order.is_sealed and begins else ""
    found: list[tuple[int, int, int]] = []
    damage: LogDamaged | None = None
    newest = order.newest
    try:
        for position, header in _batches(order):
            found.append((position, header.base_offset, newest))
            newest = max(newest, header.max_timestamp)
            place = Place(place.base, position + header.size, header.next_offset)
    except LogDamaged as error:
        damage = error
    if damage is None and place.position == order.end and place.offset != order.last:
        reason = f"the segment ends at offset {place.offset}, not at {order.last}"
        damage = LogDamaged(order.path, place.position, place.offset, reason)
    if order.is_sealed and not wrong_index and found:
        wrong_index = _disagreement(order, [*found, (place.position, place.offset, newest)])
    is_aborted_wrong = begins and order.has_aborted and _is_aborted_wrong(order)
    read = place.position - order.place.position
    return Scrubbed(place, newest, max(read, CHUNK_BYTES), damage, wrong_index, is_aborted_wrong)


def _batches(order: ScrubOrder) -> Iterator[tuple[int, BatchHeader]]:
    """Each (position, header) of the slice, with its CRC, offset and epoch checked. Raises LogDamaged, StorageIoError.

    Of batches below the log's start only the headers are read.
    """
    position, expected = order.place.position, order.place.offset
    epochs, stop = EpochHistory(order.epochs), min(order.end, order.place.position + order.size)
    chunk, chunk_start = b"", 0
    fd = _open(order)
    try:
        filesystem.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NOREUSE)  # what readers use stays in the page cache
        while position < stop:
            if position + HEADER_BYTES > chunk_start + len(chunk):
                chunk, chunk_start = read_at(fd, min(CHUNK_BYTES, order.end - position), position), position
            header = parse_header(chunk, position - chunk_start)
            if header.base_offset != expected:
                raise CorruptBatch(f"it begins at offset {header.base_offset}, not at {expected}")
            if position + header.size > order.end:
                raise CorruptBatch("a batch is cut off")
            if header.next_offset > order.log_start:
                if position + header.size > chunk_start + len(chunk):
                    chunk, chunk_start = read_at(fd, min(CHUNK_BYTES, order.end - position), position), position
                _check_crc(fd, position, header, memoryview(chunk)[position - chunk_start :])
                check_epoch(epochs, header, order.log_start)
            yield position, header
            position, expected = position + header.size, header.next_offset
    except CorruptBatch as error:
        raise LogDamaged(order.path, position, expected, error.reason) from error
    except OSError as error:
        raise from_os_error(f"read {order.path}", error) from error
    finally:
        filesystem.close(fd)


def _open(order: ScrubOrder) -> int:
    try:
        return open_file(order.path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise LogDamaged(order.path, 0, order.place.base, "the file is missing") from error
    except OSError as error:
        raise from_os_error(f"open {order.path}", error) from error


def _check_crc(fd: int, position: int, header: BatchHeader, begun: memoryview) -> None:
    """CorruptBatch unless the batch at `position` has a right CRC; `begun`: the first bytes of it that were read.

    Never more than a chunk is in memory: a flipped bit in its length must not take a gigabyte.
    """
    if header.size <= len(begun):
        check_crc(begun, 0, header)
        return
    crc, at, end = google_crc32c.value(bytes(begun[CRC_START:])), position + len(begun), position + header.size
    while at < end:
        data = read_at(fd, min(LARGE_CHUNK_BYTES, end - at), at)
        if not data:
            raise CorruptBatch("the file is too short")
        crc, at = google_crc32c.extend(crc, data), at + len(data)
    if crc != header.crc:
        raise CorruptBatch("its CRC is wrong")


def _wrong_files(order: ScrubOrder) -> str:
    """Why the index files cannot be used, read whole once; empty = they can. Raises StorageIoError."""
    try:
        OffsetIndex.from_bytes(read_bytes(order.path.with_suffix(INDEX)), order.end)
        TimeIndex.from_bytes(read_bytes(order.path.with_suffix(TIME_INDEX)))
    except FileNotFoundError:
        return "a file is missing"
    except IndexDamaged as error:
        return str(error)
    except OSError as error:
        raise from_os_error(f"read the indexes of {order.path}", error) from error
    return ""


def _disagreement(order: ScrubOrder, batches: Sequence[tuple[int, int, int]]) -> str:
    """Where the indexes disagree with these batches, as a sentence; empty = nowhere.

    `batches`: (position, offset, largest timestamp before) of each, and of their end.
    """
    positions = [position for position, _, _ in batches]
    offsets = [offset - order.place.base for _, offset, _ in batches]
    try:
        for relative, position in places_between(order.path.with_suffix(INDEX), positions[0], positions[-1]):
            at = bisect_left(positions, position)
            if positions[at] != position or offsets[at] != relative:
                return f"no batch begins at byte {position} with offset {order.place.base + relative}"
        for timestamp, relative in times_between(order.path.with_suffix(TIME_INDEX), offsets[0], offsets[-1]):
            at = bisect_right(offsets, relative) - 1
            if offsets[at] != relative or timestamp < batches[at][2]:
                return f"a record below offset {order.place.base + relative} is younger than {timestamp}"
    except FileNotFoundError:
        return "a file is missing"
    except OSError as error:
        raise from_os_error(f"read the indexes of {order.path}", error) from error
    return ""


def _is_aborted_wrong(order: ScrubOrder) -> bool:
    try:
        read_aborted(order.path.with_suffix(TXN_INDEX), order.place.base)
    except LogDamaged:
        return True
    return False


def read_passes(folder: Path) -> Passes:
    """How far the passes over the log in this folder are; none so far if the checkpoint is missing or damaged."""
    text = read_text(folder / CHECKPOINT) or ""
    body, _, crc = text.rpartition(" ")
    if crc != _crc(body):
        return Passes()
    last_ms, base = map(int, body.split())
    return Passes(last_ms, None if base < 0 else Place(base, 0, base))


def write_passes(folder: Path, passes: Passes) -> None:
    """Note how far the passes are. A pass goes on at the beginning of the segment. Raises DiskFull, StorageIoError."""
    body = f"{passes.last_ms} {-1 if passes.place is None else max(0, passes.place.base)}"
    write_atomically(folder / CHECKPOINT, f"{body} {_crc(body)}".encode(), durable=False)


def _crc(body: str) -> str:
    return f"{google_crc32c.value(body.encode()):08x}"


__all__ = ["NO_TIMESTAMP", "ScrubOrder", "Scrubbed", "read_passes", "scrub", "write_passes"]
