"""The two sparse indexes of a segment: offset to file position, and timestamp to offset.

Used by `segment` only. Both get an entry about every `index.interval.bytes`, both are kept in memory as columns while
the segment is in use (a binary search is then one call into C) and written when the segment is sealed. They are hints:
every answer is checked against the batch header found there, and a file that is missing, cut off or not rising is
rebuilt from the segment. Files: `.index` has u32 relative offset and u32 position, `.timeindex` has i64 timestamp and
u32 relative offset, all big-endian, as Kafka's.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise

_TIME_ENTRY = struct.Struct(">qI")
_U32 = "I"
_SWAP = sys.byteorder == "little"
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = _TIME_ENTRY.size


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
        """Drop entries of batches that begin at or behind byte `position`."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:]
        del self.positions[keep:]

    def to_bytes(self) -> bytes:
        """The `.index` file."""
        mixed = array(_U32, bytes(OFFSET_ENTRY_BYTES * len(self.offsets)))
        mixed[0::2] = self.offsets
        mixed[1::2] = self.positions
        if _SWAP:
            mixed.byteswap()
        return mixed.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, file_size: int) -> OffsetIndex:
        """Read `to_bytes` for a segment file of `file_size` bytes; IndexDamaged when it is invalid."""
        if len(data) % OFFSET_ENTRY_BYTES:
            raise IndexDamaged("cut off in the middle of an entry")
        mixed = array(_U32)
        mixed.frombytes(data)
        if _SWAP:
            mixed.byteswap()
        index = cls()
        index.offsets, index.positions = mixed[0::2], mixed[1::2]
        for column in (index.offsets, index.positions):
            if any(later <= earlier for earlier, later in pairwise(column)):
                raise IndexDamaged("entries do not rise")
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
        return b"".join(map(_TIME_ENTRY.pack, self.timestamps, self.offsets))

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        """Read `to_bytes`; IndexDamaged when it is invalid."""
        if len(data) % TIME_ENTRY_BYTES:
            raise IndexDamaged("cut off in the middle of an entry")
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            index.append(timestamp, offset)
        if any(later < earlier for earlier, later in pairwise(index.timestamps)):
            raise IndexDamaged("timestamps go back")
        if any(later <= earlier for earlier, later in pairwise(index.offsets)):
            raise IndexDamaged("offsets do not rise")
        return index


def last_time_entry(data: bytes) -> tuple[int, int] | None:
    """The last (timestamp, relative offset) of a `.timeindex` file, read from its end; None where there is none."""
    if len(data) < TIME_ENTRY_BYTES:
        return None
    timestamp, offset = _TIME_ENTRY.unpack(data[-TIME_ENTRY_BYTES:])
    return timestamp, offset
