"""Which records are the last of their keys, in little memory: a bit for each record, and what is named here.

Records are numbered in the order of the log. Each key is entered with its number: 16 bytes, of which 12 are hashes of
the key, into one of many parts by its hash; a key of any size takes as much as a short one. Parts that do not fit into
memory go to a file. In the end each part alone becomes a dictionary, whose values are the last numbers. Two keys are
taken for one only if 96 bits of two hashes are equal, of which one is keyed per process: for ten million keys the
chance is below 10**-14.

Used by `cleaning`, in its thread. May touch: one temporary file.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self
from zlib import crc32

from raylog.storage import filesystem
from raylog.storage.descriptors import open_file
from raylog.storage.errors import from_os_error
from raylog.storage.log.files import read_at, remove, write_at

_ENTRY: Final = struct.Struct("<qII")
_READ: Final = struct.Struct("<12sI")
ENTRY_BYTES: Final = _ENTRY.size
RECORDS_MAX: Final = 2**32 - 1
"""Records of one cleaning: their numbers take four bytes."""
_PART_RECORDS: Final = 1 << 16
"""About how many entries a part has: its dictionary takes 10 MB."""
_PARTS_MAX: Final = 1 << 12
_BITS: Final = tuple(bytes((byte >> place) & 1 for place in range(8)) for byte in range(256))


class Survivors:
    """A bit for each record: whether it is the last of its key, or has none."""

    __slots__ = ("_bits",)

    def __init__(self, bits: bytearray) -> None:
        self._bits = bits

    def rows(self, first: int, count: int) -> bytes:
        """A byte, 0 or 1, for each of `count` records from number `first` on."""
        start = first >> 3
        spread = b"".join([_BITS[byte] for byte in self._bits[start : (first + count + 7) >> 3]])
        return spread[first & 7 : (first & 7) + count]


class KeyTable:
    """The keys of one cleaning. Use as a context: the file goes with it."""

    def __init__(self, spill: Path, records: int, memory_bytes: int) -> None:
        """`records`: about how many there will be. `memory_bytes`: for the entries that are not in the file `spill`."""
        parts = 1
        while parts < _PARTS_MAX and parts * _PART_RECORDS < records:
            parts *= 2
        self._parts = [bytearray() for _ in range(parts)]
        self._mask = parts - 1
        self._bits = bytearray()
        self._count = 0
        self._path = spill
        self._fd = -1
        self._places = [array("Q") for _ in range(parts)]
        """Where each piece of each part begins in the file."""
        self._lengths = [array("I") for _ in range(parts)]
        """The bytes of these pieces."""
        self._end = 0
        self._memory_bytes = memory_bytes
        self._spill_at = self._room()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            filesystem.close(self._fd)
            remove(self._path)

    def add(self, keys: Sequence[bytes | None]) -> None:
        """Enter the keys of the next records. Raises DiskFull, StorageIoError."""
        parts, mask, pack, number = self._parts, self._mask, _ENTRY.pack, self._count
        for key in keys:
            if key is not None:
                code = hash(key)
                parts[code & mask] += pack(code, crc32(key), number)
            else:
                self._keep(number)
            number += 1
        self._count = number
        if number >= self._spill_at:
            self._spill()

    def add_without_keys(self, count: int) -> None:
        """Enter records that have no keys: nothing can supersede them."""
        for number in range(self._count, self._count + count):
            self._keep(number)
        self._count += count

    def skip(self, count: int) -> None:
        """Pass records that neither stay nor supersede others: their transaction was aborted."""
        self._count += count

    def survivors(self) -> Survivors:
        """Find the last record of each key. To be called once, in the end."""
        self._reach(self._count)
        bits = self._bits
        for part in range(len(self._parts)):
            for number in dict(_READ.iter_unpack(self._whole(part))).values():
                bits[number >> 3] |= 1 << (number & 7)
            self._parts[part] = bytearray()
        return Survivors(bits)

    def _keep(self, number: int) -> None:
        self._reach(number + 1)
        self._bits[number >> 3] |= 1 << (number & 7)

    def _reach(self, count: int) -> None:
        missing = ((count + 7) >> 3) - len(self._bits)
        if missing > 0:
            self._bits += bytes(missing)

    def _room(self) -> int:
        """The number of records up to which the entries fit into memory: a growing bytearray may double."""
        return self._count + max(1, self._memory_bytes // (2 * ENTRY_BYTES))

    def _spill(self) -> None:
        try:
            if self._fd < 0:
                self._fd = open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for part, entries in enumerate(self._parts):
                if entries:
                    write_at(self._fd, entries, self._end)
                    self._places[part].append(self._end)
                    self._lengths[part].append(len(entries))
                    self._end += len(entries)
                    self._parts[part] = bytearray()
        except OSError as error:
            raise from_os_error(f"write {self._path}", error) from error
        self._spill_at = self._room()

    def _whole(self, part: int) -> bytes:
        pieces = zip(self._places[part], self._lengths[part], strict=True)
        return b"".join((*self._read(pieces), self._parts[part]))

    def _read(self, pieces: Iterable[tuple[int, int]]) -> Iterable[bytes]:
        for position, length in pieces:
            try:
                yield read_at(self._fd, length, position)
            except OSError as error:
                raise from_os_error(f"read {self._path}", error) from error
