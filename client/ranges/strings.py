"""Makes Arrow arrays of byte strings and of headers from encoded bytes. Used by pieces.py and fillers.py. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from raylog.client.ranges.buffers import integers, room_for, texts
from raylog.storage.batch.columns import HeaderColumn
from raylog.storage.batch.records import Grid

_KEPT_ROWS = 16_384
"""Cached arrays, which several record batches share, have a multiple of so many rows."""
_KEPT_ROWS_MAX = 131_072
"""Larger arrays are not cached: a batch of the log may have millions of small records."""
_END_MAX = 2**31 - 1
INLINE_BYTES = 12
"""Arrow's views contain strings of up to so many bytes themselves."""
_VIEW = np.dtype([("size", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("first", "<i4")])


def nulls(rows: int) -> Any:
    """An array of nulls: a slice of a cached array, because many topics have no keys."""
    kept = -(-rows // _KEPT_ROWS) * _KEPT_ROWS
    return _nulls(kept).slice(0, rows) if kept <= _KEPT_ROWS_MAX else pa.nulls(rows, pa.binary())


@lru_cache(maxsize=4)
def _nulls(rows: int) -> Any:
    return pa.nulls(rows, pa.binary())


def copy_grid(grid: Grid, begin: int, count: int, out: Any) -> None:
    """Copy `count` strings from row `begin` on to `out`, without gaps; `out`: a uint8 array of their total size."""
    if grid.width:
        kind = np.dtype(f"V{grid.width}")
        found = np.ndarray(count, kind, grid.data, grid.first + begin * grid.stride, (grid.stride,))
        out.view(kind)[:] = found


def of_runs(runs: Sequence[tuple[int, int]], data: Any) -> Any:
    """An array of the strings that follow one another in `data` (numpy, uint8); `runs`: (length, how many)."""
    rows = sum(count for _, count in runs)
    width, kept = runs[0][0], -(-rows // _KEPT_ROWS) * _KEPT_ROWS
    if len(runs) == 1 and kept <= _KEPT_ROWS_MAX and width * kept <= _END_MAX:
        ends = _equal_ends(width, kept)[: rows + 1]
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    ends = room_for(rows + 1, np.int32)
    ends[0] = row = end = 0
    for width, count in runs:
        after = end + width * count
        ends[row + 1 : row + count + 1] = np.arange(end + width, after + 1, width, dtype=np.int32) if width else end
        row, end = row + count, after
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


@lru_cache(maxsize=8)
def _equal_ends(width: int, rows: int) -> Any:
    """Arrow's offsets of `rows` strings of one length (`rows` + 1 numbers); cached, as record batches share them."""
    return np.arange(0, width * rows + 1, width, dtype=np.int32) if width else np.zeros(rows + 1, np.int32)


def of_places(data: Any, firsts: Any, sizes: Any) -> Any:
    """An array of the strings at these places of `data` (numpy, uint8); a negative size is a null.

    The places must lie inside `data`, below 2 GB. numpy makes Arrow views of the strings, from which Arrow copies them.
    """
    rows = len(sizes)
    is_null = sizes < 0
    views = np.zeros(rows, dtype=_VIEW)
    views["size"] = np.where(is_null, 0, sizes)
    views["first"] = firsts
    short = np.flatnonzero(sizes <= INLINE_BYTES)
    if len(short):
        # The bytes after a short string are masked, because its view must be filled with zeros.
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
    """An array of headers: lists of structs or maps, by `kind`. Null for a record without any, as in Kafka's source."""
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
