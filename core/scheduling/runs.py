"""Runs: sorted keys in blocks, compressed column by column, as they lie in the log. Pure.

A run is the value of one record of ``__scheduled``. Its blocks are compressed separately, so a cursor holds one block
of 1,024 keys however long the run is. The directory in front has, for each block, its first key and where it ends: a
search reads one block. Behind the blocks are the names of those keys that have one (``name_column``).
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from raylog.core.scheduling.keys import OFFSET_BITS, TOMBSTONE, due_of, offset_of
from raylog.core.scheduling.name_column import encode_names, filter_place, may_hold, place_of
from raylog.core.scheduling.numbers import numbers_of, to_bytes

BLOCK_KEYS: Final = 1_024
_LEVEL: Final = 1
_HEAD: Final = struct.Struct("<II")
"""Number of keys, number of blocks."""
_ENTRY: Final = struct.Struct("<QQI")
"""Of a block: its first key's due time, offset with the tombstone bit, and where the block ends."""
_LOW_MASK: Final = (1 << (OFFSET_BITS + 1)) - 1

PAGE_BYTES: Final = 16 * 1024
"""A run is checked in parts of so many bytes."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run without opening it."""

    lowest_offset: int
    """Lowest first offset of its keys: their records are needed as long as the run is."""
    highest_offset: int = (1 << OFFSET_BITS) - 1
    has_tombstones: bool = True
    names: int = 0
    """How many of its keys have a name."""
    check: int = 0
    """CRC-32 of the sums of its pages, so that pages can be read alone; stored with the run (``rows.sealed``)."""

    @classmethod
    def of(cls, keys: Sequence[int], names: Mapping[int, int]) -> RunFacts:
        """Return the facts of a run of these keys; ``names`` may also have keys of others."""
        offsets = [offset_of(key) for key in keys]
        named = sum(key in names for key in keys) if names else 0
        return cls(min(offsets), max(offsets), any(map(is_tombstone, keys)), named)


def encode_run(keys: Sequence[int], names: Mapping[int, int] | None = None) -> bytes:
    """Return the run of sorted keys, at least one; ``names``: name by key, for those that have one."""
    blocks = [_encode_block(keys[start : start + BLOCK_KEYS]) for start in range(0, len(keys), BLOCK_KEYS)]
    directory, end = [], 0
    for number, block in enumerate(blocks):
        end += len(block)
        first = keys[number * BLOCK_KEYS]
        directory.append(_ENTRY.pack(due_of(first), first & _LOW_MASK, end))
    return b"".join([_HEAD.pack(len(keys), len(blocks)), *directory, *blocks, encode_names(keys, names or {})])


def page_sums(data: bytes) -> bytes:
    """Return the CRC-32 of each page of a run."""
    view = memoryview(data)
    sums = [zlib.crc32(view[start : start + PAGE_BYTES]) for start in range(0, len(data), PAGE_BYTES)]
    return to_bytes(array("I", sums))


def pages_fit(pages: bytes, first: int, sums: bytes) -> bool:
    """Return whether pages of a run, from number ``first`` on, match its checksums ``sums``."""
    expected = sums[4 * first :]
    return expected.startswith(page_sums(pages))


def _encode_block(keys: Sequence[int]) -> bytes:
    dues = array("Q", [due_of(key) for key in keys])
    lows = array("Q", [key & _LOW_MASK for key in keys])
    for number in range(len(dues) - 1, 0, -1):
        dues[number] -= dues[number - 1]
    return zlib.compress(to_bytes(dues) + to_bytes(lows), _LEVEL)


def _decode_block(data: bytes) -> tuple[array[int], array[int]]:
    plain = zlib.decompress(data)
    half = len(plain) // 2
    return array("Q", accumulate(numbers_of("Q", plain[:half]))), numbers_of("Q", plain[half:])


@dataclass(frozen=True, slots=True)
class Run:
    """What is kept in memory of a run: where it is, and its directory."""

    offset: int
    """Of its record in the log."""
    count: int
    firsts: tuple[int, ...]
    """First key of each block, ascending."""
    ends: tuple[int, ...]
    """Where each block ends in the run, counted from ``blocks_at``."""
    facts: RunFacts

    @property
    def blocks_at(self) -> int:
        """Where the blocks begin."""
        return _HEAD.size + len(self.firsts) * _ENTRY.size

    @property
    def names_at(self) -> int:
        """Where the names begin."""
        return self.blocks_at + self.ends[-1]

    @property
    def size(self) -> int:
        """Bytes of the run."""
        return self.names_at + (filter_place(self.facts.names)[1] if self.facts.names else 0)

    @staticmethod
    def directory_bytes(head: bytes) -> int:
        """Return where the directory of a run ends; ``head``: the first bytes of the run."""
        return _HEAD.size + int(_HEAD.unpack_from(head)[1]) * _ENTRY.size

    @classmethod
    def read(cls, offset: int, data: bytes, facts: RunFacts) -> Run:
        """Return the run of the record at an offset; ``data`` has at least its first bytes, with the directory."""
        count, blocks = _HEAD.unpack_from(data)
        rows = [_ENTRY.unpack_from(data, _HEAD.size + number * _ENTRY.size) for number in range(blocks)]
        firsts = tuple(due << (OFFSET_BITS + 1) | low for due, low, _ in rows)
        return cls(offset, count, firsts, tuple(end for _, _, end in rows), facts)

    def filter(self, read: ReadBlock) -> bytes:
        """Return the Bloom filter of its names; empty if it has none."""
        if not self.facts.names:
            return b""
        start, end = filter_place(self.facts.names)
        return read(self, self.names_at + start, self.names_at + end)

    def may_name(self, name: int, read: ReadBlock) -> bool:
        """Return False if the Bloom filter rules out that the run has a name; reads three bytes at most."""
        start, end = filter_place(self.facts.names)
        at = self.names_at + start
        return may_hold(lambda byte: read(self, at + byte, at + byte + 1)[0], end - start, name)

    def key_of(self, name: int, read: ReadBlock) -> int | None:
        """Return the key under a name; None = the run does not have it."""
        start = self.names_at
        place = place_of(name, self.facts.names, lambda low, high: read(self, start + low, start + high))
        if place is None:
            return None
        number, index = divmod(place, BLOCK_KEYS)
        dues, lows = self.block(number, read)
        return dues[index] << (OFFSET_BITS + 1) | lows[index]

    def block(self, number: int, read: ReadBlock) -> tuple[array[int], array[int]]:
        """Return the due times of one block, and its offsets with their tombstone bits."""
        start = self.blocks_at + (self.ends[number - 1] if number else 0)
        return _decode_block(read(self, start, self.blocks_at + self.ends[number]))

    def holds(self, key: int, read: ReadBlock) -> bool:
        """Return whether a key is in the run."""
        number = bisect_right(self.firsts, key) - 1
        if number < 0:
            return False
        dues, lows = self.block(number, read)
        return key in _keys(dues, lows)

    def keys_between(self, low: int, high: int, read: ReadBlock) -> Iterator[int]:
        """Return the keys in ``[low, high)``, in order."""
        number = max(0, bisect_right(self.firsts, low) - 1)
        while number < len(self.firsts) and self.firsts[number] < high:
            yield from (key for key in _keys(*self.block(number, read)) if low <= key < high)
            number += 1


ReadBlock = Callable[[Run, int, int], bytes]
"""Returns bytes ``[start, end)`` of a run."""


def _keys(dues: array[int], lows: array[int]) -> Iterator[int]:
    return (due << (OFFSET_BITS + 1) | low for due, low in zip(dues, lows, strict=True))


class Cursor:
    """A place in a run, with the block it is in; moves forward only."""

    __slots__ = ("_block", "_index", "_number", "_read", "head", "run")

    def __init__(self, run: Run, read: ReadBlock, behind: int = -1) -> None:
        """Stand on the first key greater than ``behind``."""
        self.run = run
        self._read = read
        self._number = max(0, bisect_right(run.firsts, behind) - 1)
        self._block = run.block(self._number, read)
        self._index = 0
        self.head: int | None = None
        """The key under the cursor; None = the run is exhausted."""
        if behind >= 0:  # skip the keys that are due earlier; pass_to does the rest
            self._index = bisect_left(self._block[0], due_of(behind))
        self._settle()
        self.pass_to(behind)

    def pass_to(self, behind: int) -> None:
        """Go on to the first key greater than ``behind``."""
        while self.head is not None and self.head <= behind:
            self.advance()

    def advance(self) -> None:
        """Go on to the next key."""
        self._index += 1
        self._settle()

    def _settle(self) -> None:
        dues, lows = self._block
        if self._index >= len(dues):
            self._number, self._index = self._number + 1, 0
            if self._number >= len(self.run.firsts):
                self.head, self._block = None, (array("Q"), array("Q"))
                return
            dues, lows = self._block = self.run.block(self._number, self._read)
        self.head = dues[self._index] << (OFFSET_BITS + 1) | lows[self._index]


def is_tombstone(key: int) -> bool:
    """Return whether a key is a tombstone, which cancels the key without the bit."""
    return bool(key & TOMBSTONE)
