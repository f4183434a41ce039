"""The names in a run: a sorted column with the place of each key, and a filter in front of it. Pure.

Names are 128-bit hashes of schedule ids. Behind the blocks of a run are the upper halves of its names in order, their
lower halves, and the place of each name's key among the run's keys. Then follows a Bloom filter with three probes and
at least eight bits per name: about one of 30 searches for a name that the run does not have reads the column in vain.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from raylog.core.scheduling.numbers import numbers_of, to_bytes

_HALF: Final = 64
_LOW: Final = (1 << _HALF) - 1
_NAME_BYTES: Final = 20
"""Bytes per name in the column: two halves of 8, and a place of 4."""
_BITS_EACH: Final = 8
_BITS_MIN: Final = 64
_SHIFTS: Final = (0, 32, 64)
"""A probe is the name shifted by one of these, modulo the filter's bits. Names are hashes: no other hash is needed."""

Part = Callable[[int, int], bytes]
"""Returns bytes ``[start, end)`` behind the blocks of a run."""


def encode_names(keys: Sequence[int], names: Mapping[int, int]) -> bytes:
    """Return the column and the filter for those of a run's keys that have names; empty where none has."""
    rows = sorted((name, place) for place, key in enumerate(keys) if (name := names.get(key, 0)))
    if not rows:
        return b""
    column = [
        to_bytes(array("Q", [name >> _HALF for name, _ in rows])),
        to_bytes(array("Q", [name & _LOW for name, _ in rows])),
        to_bytes(array("I", [place for _, place in rows])),
    ]
    bits = bytearray(filter_bytes(len(rows)))
    mask = 8 * len(bits) - 1
    for name, _ in rows:
        for shift in _SHIFTS:
            probe = name >> shift & mask
            bits[probe >> 3] |= 1 << (probe & 7)
    return b"".join([*column, bits])


def filter_bytes(names: int) -> int:
    """Return how many bytes the filter of so many names has: a power of two."""
    return (1 << max(_BITS_MIN, _BITS_EACH * names).bit_length()) // 8


def filter_place(names: int) -> tuple[int, int]:
    """Return where the filter begins and ends, counted from the end of the blocks."""
    start = _NAME_BYTES * names
    return start, start + filter_bytes(names)


def may_hold(byte_at: Callable[[int], int], size: int, name: int) -> bool:
    """Return False if a filter of ``size`` bytes rules out that its run has a name."""
    mask = 8 * size - 1
    return all(byte_at((name >> shift & mask) >> 3) >> (name >> shift & 7) & 1 for shift in _SHIFTS)


def place_of(name: int, names: int, part: Part) -> int | None:
    """Return the place of a name's key in its run, which has ``names`` names; None = the name is not among them."""
    upper, lower = name >> _HALF, name & _LOW

    def number(typecode: str, start: int, index: int, size: int = 8) -> int:
        found: int = numbers_of(typecode, part(start + size * index, start + size * (index + 1)))[0]
        return found

    index = bisect_left(range(names), upper, key=lambda at: number("Q", 0, at))
    while index < names and number("Q", 0, index) == upper:
        if number("Q", 8 * names, index) == lower:
            return number("I", 16 * names, index, 4)
        index += 1
    return None
