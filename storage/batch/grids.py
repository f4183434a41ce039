"""Columns whose byte strings all have one length, found in a batch's body without decoding each.

Records of a fixed size are common, and a column of them needs no decoding: the position of each follows from the first.
Used by `columns.py`, and through it by consumers. `key_and_value` finds both of a batch's only record by the batch's
first bytes, so that parts of a long value can be read. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import HEADER_BYTES, MAGIC_COLUMNS, BatchHeader

NIL = 0xC0
FOUR_COLUMNS = 0x94
ARRAY_16, ARRAY_32 = 0xDC, 0xDD
_BIN_8, _BIN_16, _BIN_32 = 0xC4, 0xC5, 0xC6
_SIZE_BYTES = {_BIN_8: 1, _BIN_16: 2, _BIN_32: 4}


class Grid(NamedTuple):
    """Byte strings of one length at equal distances: the first `width` bytes of every `stride`, from byte `first`."""

    data: Buffer
    first: int
    stride: int
    width: int


class Layout(NamedTuple):
    """The layout of a body with keys and values of one length each; None where all are null."""

    timestamp_deltas: bytes | None
    """One byte each, below 128."""
    keys: Grid | None
    values: Grid | None


def array_at(data: Buffer, at: int) -> tuple[int, int] | None:
    """The element count of the array at byte `at`, and where its first element begins; None for anything but an array.

    Raises IndexError where the data ends.
    """
    kind = data[at]
    if kind & 0xF0 == 0x90:
        return kind & 0x0F, at + 1
    if kind in (ARRAY_16, ARRAY_32):
        end = at + (3 if kind == ARRAY_16 else 5)
        return int.from_bytes(data[at + 1 : end], "big"), end
    return None


def find_grid(data: Buffer, at: int, limit: int, rows: int) -> Grid | None:
    """The `rows` byte strings from byte `at` on, if all are as long as the first and end at or before byte `limit`.

    None otherwise.
    """
    size_bytes = _SIZE_BYTES.get(data[at]) if at < limit and rows else None
    if size_bytes is None:
        return None
    head = 1 + size_bytes
    width = int.from_bytes(data[at + 1 : at + head], "big")
    stride = head + width
    end = at + stride * rows
    if end > limit:
        return None
    # The first string ends where the second begins, so if that begins with the same length it ends where the third
    # begins, and so on.
    for place in range(at, at + head):
        if bytes(data[place:end:stride]) != bytes(data[place : place + 1]) * rows:
            return None
    return Grid(data, at + head, stride, width)


def find_layout(data: Buffer, start: int, end: int, rows: int) -> Layout | None:
    """The layout of the body from byte `start` up to `end`; None where it is not a grid."""
    try:
        if data[start] != FOUR_COLUMNS or not rows:
            return None
        at = start + 1
        deltas: bytes | None = None
        if data[at] == NIL:
            at += 1
        else:
            if (found := array_at(data, at)) is None or found[0] != rows:
                return None
            at = found[1] + rows
            deltas = bytes(data[found[1] : at])
            if not deltas.isascii() or len(deltas) != rows:  # integers below 128 are encoded as themselves
                return None
        grids: list[Grid | None] = []
        for _ in range(2):
            grid: Grid | None = None
            if data[at] == NIL:
                at += 1
            else:
                if (found := array_at(data, at)) is None or found[0] != rows:
                    return None
                if (grid := find_grid(data, found[1], end, rows)) is None:
                    return None
                at = found[1] + grid.stride * rows
            grids.append(grid)
        has_no_headers = at + 1 == end and data[at] == NIL
    except IndexError:  # cut off: the decoder raises the error
        return None
    return Layout(deltas, grids[0], grids[1]) if has_no_headers else None


class Place(NamedTuple):
    """Bytes of a batch, counted from its beginning."""

    start: int
    end: int


def key_and_value(head: Buffer, header: BatchHeader) -> tuple[Place, Place] | None:
    """The places of both in the batch that begins with `head`, which has to hold everything before the value.

    None if the batch is compressed, has more records, or a null key or value, and if `head` is too short.
    """
    if header.magic != MAGIC_COLUMNS or header.compression or header.record_count != 1:
        return None
    places: list[Place] = []
    at = HEADER_BYTES + 2  # after the head of the columns' array, and nil for timestamps that are all alike
    try:
        if head[at - 2] != FOUR_COLUMNS or head[at - 1] != NIL:
            return None
        while len(places) < 2:
            column = array_at(head, at)
            if column is None or column[0] != 1:
                return None
            grid = find_grid(head, column[1], header.size, 1)
            if grid is None or grid.first > len(head):  # then its length is cut off
                return None
            at = grid.first + grid.width
            places.append(Place(grid.first, at))
    except IndexError:
        return None
    return places[0], places[1]
