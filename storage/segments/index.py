"""The two sparse indexes of a segment: offset to file position, and timestamp to offset.

Used by `segment` only. Both get an entry about every `index.interval.bytes`, both are kept in memory as columns while
the segment is in use (a binary search is then one call into C) and written when the segment is sealed. A file that is
missing, cut off, changed or older than the segment is rebuilt from the segment.

Files: entries as Kafka's, big-endian, and a checksum, without which a flipped bit would be another timestamp:

    .index      u32 relative offset, u32 position     per entry
    .timeindex  i64 timestamp, u32 relative offset    per entry
    both        u32 CRC-32C of all entries            at the end; a file without it is rebuilt
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

import google_crc32c

from raylog.storage import filesystem
from raylog.storage.descriptors import open_file
from raylog.storage.files import read_at

_TIME_ENTRY = struct.Struct(">qI")
_PLACE_ENTRY = struct.Struct(">II")
_CRC = struct.Struct(">I")
_U32 = "I"
_SWAP = sys.byteorder == "little"
_OFFSET_ENTRY_BYTES = 8
_TIME_ENTRY_BYTES = _TIME_ENTRY.size


class IndexDamaged(Exception):
    """An invalid index file. Caught where the index is rebuilt, and not raised further."""


class OffsetIndex:
    """Rising relative offsets of batches, and where in the segment file each of these batches begins."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array(_U32)
        self.positions = array(_U32)

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        """Record that the batch which begins at `relative_offset` begins at byte `position`."""
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """(relative offset, position) of the last indexed batch that begins at or before `relative_offset`.

        (0, 0) if there is none: the segment itself begins there.
        """
        above = bisect_right(self.offsets, relative_offset)
        return (self.offsets[above - 1], self.positions[above - 1]) if above else (0, 0)

    def tail(self) -> tuple[int, int]:
        """As `floor`, of the last indexed batch."""
        return (self.offsets[-1], self.positions[-1]) if self.offsets else (0, 0)

    def floor_within(self, relative_offset: int, position: int) -> tuple[int, int]:
        """As `floor`, limited to batches that begin at or before byte `position`."""
        above = min(bisect_right(self.offsets, relative_offset), bisect_right(self.positions, position))
        return (self.offsets[above - 1], self.positions[above - 1]) if above else (0, 0)

    def truncate(self, position: int) -> None:
        """Drop entries of batches that begin at or after byte `position`."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:]
        del self.positions[keep:]

    def to_bytes(self) -> bytes:
        """The `.index` file."""
        mixed = array(_U32, bytes(_OFFSET_ENTRY_BYTES * len(self.offsets)))
        mixed[0::2] = self.offsets
        mixed[1::2] = self.positions
        if _SWAP:
            mixed.byteswap()
        return _with_checksum(mixed.tobytes())

    @classmethod
    def from_bytes(cls, data: bytes, file_size: int) -> OffsetIndex:
        """Read `to_bytes` for a segment file of `file_size` bytes; IndexDamaged when it is invalid."""
        mixed = array(_U32)
        mixed.frombytes(_checked(data))
        if _SWAP:
            mixed.byteswap()
        index = cls()
        index.offsets, index.positions = mixed[0::2], mixed[1::2]
        if index.positions and index.positions[-1] >= file_size:
            raise IndexDamaged("an entry points behind the segment")
        return index


class TimeIndex:
    """Entries (timestamp, relative offset): no record below that offset is younger than that timestamp."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array(_U32)

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Record that `timestamp` (milliseconds) is the largest of all records below `relative_offset`."""
        self.timestamps.append(timestamp)
        self.offsets.append(relative_offset)

    def start_for(self, timestamp: int) -> int:
        """The relative offset below which every record is older than `timestamp`; 0 if unknown."""
        above = bisect_left(self.timestamps, timestamp)
        return self.offsets[above - 1] if above else 0

    def largest_below(self, relative_offset: int) -> tuple[int, int] | None:
        """The last entry (timestamp, relative offset) at or before `relative_offset`."""
        above = bisect_right(self.offsets, relative_offset)
        return (self.timestamps[above - 1], self.offsets[above - 1]) if above else None

    def truncate(self, relative_offset: int) -> None:
        """Drop entries beyond `relative_offset`."""
        keep = bisect_right(self.offsets, relative_offset)
        del self.timestamps[keep:]
        del self.offsets[keep:]

    def to_bytes(self) -> bytes:
        """The `.timeindex` file."""
        return _with_checksum(b"".join(map(_TIME_ENTRY.pack, self.timestamps, self.offsets)))

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        """Read `to_bytes`; IndexDamaged when it is invalid."""
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(_checked(data)):
            index.append(timestamp, offset)
        return index


def last_time_entry(data: bytes) -> tuple[int, int] | None:
    """The last (timestamp, relative offset) of a `.timeindex` file; None where there is none, IndexDamaged as above."""
    entries = _checked(data)
    if not entries:
        return None
    timestamp, offset = _TIME_ENTRY.unpack(entries[-_TIME_ENTRY_BYTES:])
    return timestamp, offset


def places_between(path: Path, low: int, high: int) -> list[tuple[int, int]]:
    """(relative offset, position) of the entries of an `.index` file from position `low` up to `high`, exclusive.

    Reads only these entries, so the checksum is not verified. Raises OSError.
    """
    return _between(path, _PLACE_ENTRY, 1, low, high)


def times_between(path: Path, low: int, high: int) -> list[tuple[int, int]]:
    """(timestamp, relative offset) of the entries of a `.timeindex` file above offset `low`, up to `high` inclusive.

    As `places_between`.
    """
    return _between(path, _TIME_ENTRY, 1, low + 1, high + 1)


def _between(path: Path, entry: struct.Struct, field: int, low: int, high: int) -> list[tuple[int, int]]:
    fd = open_file(path, os.O_RDONLY)
    try:
        places = range(max(0, filesystem.fstat(fd).st_size - _CRC.size) // entry.size)

        def field_of(place: int) -> int:
            data = read_at(fd, entry.size, place * entry.size)
            return int(entry.unpack(data)[field]) if len(data) == entry.size else high

        first = bisect_left(places, low, key=field_of)
        stop = bisect_left(places, high, lo=first, key=field_of)
        data = read_at(fd, (stop - first) * entry.size, first * entry.size)
    finally:
        filesystem.close(fd)
    whole = data[: len(data) // entry.size * entry.size]
    return [(key, value) for key, value in entry.iter_unpack(whole)]


def _with_checksum(entries: bytes) -> bytes:
    return entries + _CRC.pack(google_crc32c.value(entries))


def _checked(data: bytes) -> bytes:
    """The entries of an index file without their checksum; IndexDamaged unless that is there and right."""
    entries = data[: -_CRC.size]
    if _with_checksum(entries) != data:
        raise IndexDamaged("its checksum is missing or wrong")
    return entries
