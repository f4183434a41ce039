"""Finds the key and the value of a batch's only record by the batch's first bytes: parts of a long value can be read.

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.grids import FOUR_COLUMNS, NIL, array_at, find_grid
from raylog.storage.batch.header import HEADER_BYTES, MAGIC_COLUMNS, BatchHeader


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
