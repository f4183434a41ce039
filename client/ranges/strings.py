"""Arrow's arrays of byte strings, and of headers, from encoded bytes. Used by pieces.py and arrow.py. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from raylog.client.ranges.buffers import integers, room_for, texts
from raylog.storage.batch.columns import HeaderColumn
from raylog.storage.batch.records import Grid

INLINE_BYTES = 12
"""Arrow's views hold shorter strings themselves."""
_VIEW = np.dtype([("size", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("first", "<i4")])


def of_grids(parts: Sequence[tuple[Grid, int, int]]) -> Any:
    """One array of the strings of some grids: of each, so many (third) from a row (second) on."""
    rows = sum(count for _, _, count in parts)
    size = sum(grid.width * count for grid, _, count in parts)
    data, ends = room_for(size, np.uint8), room_for(rows + 1, np.int32)
    ends[0] = row = end = 0
    for grid, begin, count in parts:
        width, after = grid.width, end + grid.width * count
        if width:
            kind = np.dtype(f"V{width}")
            strings = np.ndarray(count, kind, grid.data, grid.first + begin * grid.stride, (grid.stride,))
            data[end:after].view(kind)[:] = strings
            ends[row + 1 : row + count + 1] = np.arange(end + width, after + 1, width, dtype=np.int32)
        else:
            ends[row + 1 : row + count + 1] = end
        row, end = row + count, after
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def of_places(data: Any, firsts: Any, sizes: Any) -> Any:
    """An array of the strings at these places of `data` (numpy, uint8); a negative size is a null.

    The places must lie inside, below 2 GB. Arrow copies them, from views that numpy describes.
    """
    rows = len(sizes)
    is_null = sizes < 0
    views = np.zeros(rows, dtype=_VIEW)
    views["size"] = np.where(is_null, 0, sizes)
    views["first"] = firsts
    short = np.flatnonzero(sizes <= INLINE_BYTES)
    if len(short):
        # Whatever lies behind a short string is masked: its view must end in zeros.
        column = np.arange(INLINE_BYTES)
        places = np.minimum(firsts[short, None] + column, max(len(data) - 1, 0))
        cells = np.where(column < sizes[short, None], data[places] if len(data) else 0, 0).astype(np.uint8)
        views.view(np.uint8).reshape(rows, 16)[short, 4:] = cells
    if len(short) < rows:
        column = np.arange(4)
        tall = np.flatnonzero(sizes > INLINE_BYTES)
        views.view(np.uint8).reshape(rows, 16)[tall, 4:8] = data[firsts[tall, None] + column]
    nulls = int(is_null.sum())
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if nulls else None
    buffers = [validity, pa.py_buffer(views), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), rows, buffers, null_count=nulls).cast(pa.binary())


def of_headers(column: HeaderColumn, kind: Any) -> Any:
    """Headers as a list of structs, or a map where `kind` is one. A record without headers has null, as in Kafka's
    source."""
    sizes = [len(row) if row else 0 for row in column]
    ends = np.zeros(len(column) + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    is_null = np.zeros(len(ends), dtype=bool)
    is_null[:-1] = np.equal(sizes, 0)
    offsets = integers(ends, is_null)
    pairs = list(chain.from_iterable(row for row in column if row))
    names = texts([name.encode() for name, _ in pairs], pa.string())
    values = texts([value for _, value in pairs], pa.binary())
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, names, values)
    fields = [kind.value_type.field(index) for index in range(2)]
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([names, values], fields=fields)).cast(kind)
