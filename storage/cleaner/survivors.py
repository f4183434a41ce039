"""Which records are the last of their keys, in at most 64 MB of memory for a log of any size.

Records are numbered in the order of the log. Each key is entered with its number: 16 bytes, of which 12 are hashes of
the key, into one of many parts by its hash; a key of any size takes as much as a short one. Parts that do not fit into
memory go to a file. In the end each part alone becomes a dictionary, whose values are the last numbers, and these set a
bit each. Only the bits of one range of records are in memory; the numbers of later ranges wait in another file. Two
keys are taken for one only if 96 bits of two hashes are equal, of which one is keyed per process: for ten million keys
the chance is below 10**-14.

Used by `cleaning`, in its thread. May touch: two temporary files.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self
from zlib import crc32

from raylog.storage.cleaner.spill import Spill

_ENTRY: Final = struct.Struct("<qII")
_READ: Final = struct.Struct("<12sI")
ENTRY_BYTES: Final = _ENTRY.size
RECORDS_MAX: Final = 2**32 - 1
"""Records of one cleaning: their numbers take four bytes."""
_NUMBER: Final = "I"
_NUMBER_BYTES: Final = array(_NUMBER).itemsize
_PART_RECORDS: Final = 1 << 16
"""About how many entries a part has: its dictionary takes 10 MB. With RECORDS_MAX records, parts are four times as
large."""
_PARTS_MAX: Final = 1 << 14
RANGE_RECORDS: Final = 1 << 26
"""Records whose bits are in memory at a time: 8 MB."""
_RANGES_BYTES: Final = 4 << 20
"""Memory for numbers that wait and are not in a file yet."""
_BITS: Final = tuple(bytes((byte >> place) & 1 for place in range(8)) for byte in range(256))


class Survivors:
    """A bit for each record: whether it is the last of its key, or has none. To be read in the order of the log."""

    def __init__(self, spill: Path, records: int, range_records: int) -> None:
        """No record stays. `spill`: a file for the numbers that do not fit into memory."""
        self._range_records = range_records
        self._range, self._bits = 0, bytearray()
        self._waiting = Spill(spill, records // range_records + 1, _RANGES_BYTES)
        """The numbers of later ranges, by range."""
        self._added = 0

    def keep(self, numbers: Iterable[int]) -> None:
        """Mark records as survivors; before the first call of `rows`. Raises DiskFull, StorageIoError."""
        bits, size, rows = self._bits, self._range_records, self._waiting.rows
        before, added = self._added, 0
        for number in numbers:
            if number >= size:
                rows[number // size] += number.to_bytes(_NUMBER_BYTES, "little")
                added += _NUMBER_BYTES
                continue
            while number >> 3 >= len(bits):
                bits += bytes(len(bits) or 64)
            bits[number >> 3] |= 1 << (number & 7)
        self._added = 0 if self._waiting.look(before + added) else before + added

    def rows(self, first: int, count: int) -> bytes:
        """A byte, 0 or 1, for each of `count` records from number `first` on. Raises StorageIoError."""
        found = b""
        while len(found) < count:
            place, start = divmod(first + len(found), self._range_records)
            if place != self._range:
                self._load(place)
            found += self._spread(start, min(count - len(found), self._range_records - start))
        return found

    def close(self) -> None:
        """Remove the file. Raises StorageIoError."""
        self._waiting.close()

    def _spread(self, start: int, count: int) -> bytes:
        end = (start + count + 7) >> 3
        if end > len(self._bits):
            self._bits += bytes(end - len(self._bits))
        spread = b"".join([_BITS[byte] for byte in self._bits[start >> 3 : end]])
        return spread[start & 7 : (start & 7) + count]

    def _load(self, place: int) -> None:
        self._range, self._bits = place, bytearray((self._range_records + 7) >> 3)
        bits, begin = self._bits, place * self._range_records
        for piece in self._waiting.pieces(place):
            for (number,) in struct.iter_unpack("<I", piece):
                bits[(number - begin) >> 3] |= 1 << ((number - begin) & 7)


class KeyTable:
    """The keys of one cleaning. A context manager: at its end the files are removed, and what `survivors` returned."""

    def __init__(self, spill: Path, records: int, memory_bytes: int, range_records: int = RANGE_RECORDS) -> None:
        """`records`: most records of the cleaning. `memory_bytes`: for entries that are not in the file `spill` yet."""
        parts = 1
        while parts < _PARTS_MAX and parts * _PART_RECORDS < records:
            parts *= 2
        self._mask = parts - 1
        self._parts = Spill(spill, parts, memory_bytes // 2)
        self._found = Survivors(spill.with_name(f"survivors-{spill.name}"), records, range_records)
        self._count = self._entered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()
        self._found.close()

    def add(self, keys: Sequence[bytes | None]) -> None:
        """Enter the keys of the next records. Raises DiskFull, StorageIoError."""
        parts, mask, pack, number = self._parts.rows, self._mask, _ENTRY.pack, self._count
        for key in keys:
            if key is not None:
                code = hash(key)
                parts[code & mask] += pack(code, crc32(key), number)
            else:
                self._found.keep((number,))
            number += 1
        self._entered += len(keys)
        self._count = number
        if self._parts.look(self._entered * ENTRY_BYTES):
            self._entered = 0

    def add_without_keys(self, count: int) -> None:
        """Enter records that have no keys: nothing can supersede them. Raises DiskFull, StorageIoError."""
        self._found.keep(range(self._count, self._count + count))
        self._count += count

    def skip(self, count: int) -> None:
        """Skip records that neither stay nor supersede others: their transaction was aborted."""
        self._count += count

    def survivors(self) -> Survivors:
        """Find the last record of each key. To be called once, in the end. Raises DiskFull, StorageIoError."""
        for part in range(len(self._parts.rows)):
            last: dict[bytes, int] = {}
            for piece in self._parts.pieces(part):
                last.update(_READ.iter_unpack(piece))
            self._parts.rows[part] = bytearray()
            self._found.keep(last.values())
        self._parts.close()
        return self._found
