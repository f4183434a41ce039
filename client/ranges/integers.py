"""Decodes integers into numpy arrays, without a Python object for each. Used by layouts.py and kafka_rows.py. Pure.

The place of an integer or a record depends on the sizes of all before it. But neighbours mostly have the same size
(timestamp deltas rise, records of one kind are alike), and a run of equal sizes is found in one step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

VARINT_BYTES_MAX = 10
_RUNS_MAX = 64
"""The most runs of equal size in a column; for more of them msgspec's decoder is faster."""
_STREAK = 4
"""After so many records of equal size a run is looked for."""
_KINDS = {0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8"}
"""msgpack's integers of more than one byte: the first byte, and numpy's type for the rest."""


def msgpack_integers(data: Any, rows: int) -> tuple[Any, int] | None:
    """The first `rows` elements of a msgpack array as int64, and how many bytes they take.

    None = they are not regular enough, or not all there: msgspec has to decode them. `data`: the encoded elements, a
    numpy array of uint8.
    """
    found = np.empty(rows, dtype=np.int64)
    at = row = 0
    for _ in range(_RUNS_MAX):
        if row == rows:
            break
        if at >= len(data):
            return None
        kind = int(data[at])
        if kind < 0x80:  # one byte with the integer's value
            cells = data[at : at + rows - row]
            count = _leading(cells < 0x80)
            found[row : row + count] = cells[:count]
            at += count
        elif kind in _KINDS:
            number = np.dtype(_KINDS[kind])
            stride = 1 + number.itemsize
            most = min(rows - row, (len(data) - at) // stride)
            if not most:
                return None
            cells = data[at : at + most * stride].reshape(most, stride)
            count = _leading(cells[:, 0] == kind)
            found[row : row + count] = np.ascontiguousarray(cells[:count, 1:]).view(number)[:, 0]
            at += count * stride
        else:
            return None
        row += count
    return (found, at) if row == rows else None


def varints_at(data: Any, places: Any) -> tuple[Any, Any]:
    """The zigzag varint at each place, and the place after it, as int64. Raises ValueError for an incomplete one.

    `data`: a numpy array of uint8; `places`: int64, none negative.
    """
    try:
        byte = data[places]
        numbers = (byte & 0x7F).astype(np.uint64)
        ends = places + 1
        going = np.flatnonzero(byte >= 0x80)
        for step in range(1, VARINT_BYTES_MAX):
            if not len(going):
                break
            byte = data[ends[going]]
            numbers[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            ends[going] += 1
            going = going[byte >= 0x80]
    except IndexError:
        raise ValueError("its records are cut off") from None
    if len(going):
        raise ValueError("a varint in its records is too long")
    return (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64), ends


def record_places(data: bytes, rows: int) -> Any:
    """The places where the records of a magic 2 body begin, and the last one's end: `rows` + 1. Raises ValueError."""
    places = np.empty(rows + 1, dtype=np.int64)
    view = np.frombuffer(data, dtype=np.uint8)
    end, at, row, before, streak = len(data), 0, 0, 0, 0
    while row < rows:
        size, head = _size_at(data, at)
        stride = head + size
        if size <= 0 or at + stride > end:
            raise ValueError("a length in its records is impossible")
        streak = streak + 1 if stride == before else 0
        before = stride
        if streak < _STREAK:
            places[row] = at
            at, row = at + stride, row + 1
            continue
        count = _run_of(view, at, stride, head, min(rows - row, (end - at) // stride))
        places[row : row + count] = np.arange(at, at + count * stride, stride)
        at, row, streak = at + count * stride, row + count, 0
    places[rows] = at
    return places


def _run_of(view: Any, at: int, stride: int, head: int, most: int) -> int:
    """How many of the next `most` records have the same length as the one at `at`; looks no farther than needed."""
    found, window = 1, 64
    while found < most:
        part = min(window, most - found)
        first = at + found * stride
        cells = view[first : first + part * stride].reshape(part, stride)[:, :head]
        count = _leading((cells == view[at : at + head]).all(axis=1))
        found += count
        if count < part:
            break
        window *= 8
    return found


def _size_at(data: bytes, at: int) -> tuple[int, int]:
    """The zigzag varint at a place, and how many bytes it takes. Raises ValueError."""
    number = 0
    try:
        for count in range(VARINT_BYTES_MAX):
            byte = data[at + count]
            number |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), count + 1
    except IndexError:
        raise ValueError("its records are cut off") from None
    raise ValueError("a varint in its records is too long")


def _leading(flags: Any) -> int:
    """How many flags are true before the first false one; `flags` is not empty."""
    first_false = int(flags.argmin())
    return len(flags) if flags[first_false] else first_false
