"""Finds the columns of a magic 77 body that numpy can read without decoding: integers, strings of equal length. Pure.

The columns follow one another, so no column after an irregular one is found. Used by pieces.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from raylog.client.ranges.integers import msgpack_integers
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.grids import FOUR_COLUMNS, NIL, Grid, array_at

_SIZE_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""The first bytes of msgpack's byte strings, and how many bytes their lengths take."""

_U1, _U2, _U4 = (np.dtype(f"<u{size}") for size in (1, 2, 4))
_PARTS = {2: ((0, _U2),), 3: ((0, _U2), (2, _U1)), 5: ((0, _U4), (4, _U1))}
"""A string's head (first byte and length) of 2, 3 or 5 bytes as integers that numpy can compare: (place, type)."""


class Regular(NamedTuple):
    """The regular columns of a body."""

    deltas: Any | None
    """The timestamp deltas, an array of integers; None = all records have the base timestamp."""
    strings: dict[str, Grid | None]
    """"keys" and "values", as far as they are regular; a value of None = all are null."""
    has_no_headers: bool
    """Whether all headers are known to be null."""


def regular(source: tuple[Buffer, int, int], rows: int) -> Regular | None:
    """The regular columns of the body; None if not even its timestamps are regular."""
    data, at, end = source
    if end - at < FOUR_COLUMNS & 0x0F or data[at] != FOUR_COLUMNS or not rows:
        return None
    at += 1
    deltas = None
    strings: dict[str, Grid | None] = {}
    has_no_headers = False
    try:
        if data[at] == NIL:
            at += 1
        else:
            found = array_at(data, at)
            integers = None if found is None or found[0] != rows else _integers(data, found[1], end, rows)
            if integers is None:
                return None
            deltas, at = integers
        for name in ("keys", "values"):
            if data[at] == NIL:
                strings[name] = None
                at += 1
                continue
            found = array_at(data, at)
            grid = None if found is None or found[0] != rows else _grid(data, end, found[1], rows)
            if found is None or grid is None:
                break
            strings[name] = grid
            at = found[1] + grid.stride * rows
        else:
            has_no_headers = at + 1 == end and data[at] == NIL
    except IndexError:  # the body is cut off: the decoder raises an error for that
        pass
    return Regular(deltas, strings, has_no_headers)


def _integers(data: Buffer, at: int, end: int, rows: int) -> tuple[Any, int] | None:
    """The integers from byte `at` on, and where they end; None = they are not regular."""
    small = bytes(data[at : min(at + rows, end)])
    if len(small) == rows and small.isascii():  # integers below 128 are one byte with their value
        return np.frombuffer(small, dtype=np.uint8), at + rows
    found = msgpack_integers(np.frombuffer(data, dtype=np.uint8)[at:end], rows)
    return None if found is None else (found[0], at + found[1])


def _grid(data: Buffer, end: int, at: int, rows: int) -> Grid | None:
    """The strings from byte `at` on, if all have the same length; else None."""
    size_bytes = _SIZE_BYTES.get(data[at])
    if size_bytes is None or at + 1 + size_bytes > end:
        return None
    head = 1 + size_bytes
    width = int.from_bytes(data[at + 1 : at + head], "big")
    stride = head + width
    if at + stride * rows > end:
        return None
    for first, kind in _PARTS[head]:
        cells = np.ndarray(rows, kind, data, at + first, (stride,))
        if np.count_nonzero(cells == cells[0]) != rows:
            return None
    return Grid(data, at + head, stride, width)
