"""What numpy can read of a magic 77 body without decoding it: integers, and strings of one length. Pure.

The columns lie one behind the other, so those behind the first that is not regular are not found. Used by pieces.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from raylog.client.ranges.integers import msgpack_integers
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.grids import FOUR_COLUMNS, NIL, Grid, array_at

_SIZE_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""First bytes of msgpack's byte strings, and how many bytes their lengths take."""

_U1, _U2, _U4 = (np.dtype(f"<u{size}") for size in (1, 2, 4))
_PARTS = {2: ((0, _U2),), 3: ((0, _U2), (2, _U1)), 5: ((0, _U4), (4, _U1))}
"""A string's head of so many bytes as integers: where each begins in it, and its type. A pass for each."""


class Regular(NamedTuple):
    """The columns that were found."""

    deltas: Any | None
    """Of timestamps, an array of integers; None where all have the base."""
    strings: dict[str, Grid | None]
    """Of keys, and of values, as far as they are regular; None where all are null."""
    has_no_headers: bool
    """Whether all headers are known to be null."""


def regular(source: tuple[Buffer, int, int], rows: int) -> Regular | None:
    """The regular columns of the body, at least its timestamps; None where those are not."""
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
    except IndexError:  # cut off: the decoder raises the error
        pass
    return Regular(deltas, strings, has_no_headers)


def _integers(data: Buffer, at: int, end: int, rows: int) -> tuple[Any, int] | None:
    """The integers from byte `at` on, and where they end; None where the decoder of lists must read them."""
    small = bytes(data[at : min(at + rows, end)])
    if len(small) == rows and small.isascii():  # those below 128 are encoded as themselves
        return np.frombuffer(small, dtype=np.uint8), at + rows
    found = msgpack_integers(np.frombuffer(data, dtype=np.uint8)[at:end], rows)
    return None if found is None else (found[0], at + found[1])


def _grid(data: Buffer, end: int, at: int, rows: int) -> Grid | None:
    """The strings from byte `at` on, if all are as long as the first; each then begins where that says."""
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
