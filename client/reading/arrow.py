"""Makes Arrow tables from opened batches, for `ColumnBatch.to_arrow` alone. Pure.

If all elements of a column have the same length, as those of fixed-size records or of close timestamps, its encoded
bytes are a grid, which numpy copies without a Python object per record. Other columns, and all columns if numpy is
missing (pyarrow does not need it), go through lists. pyarrow and numpy are imported in functions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

from raylog.base.ids import TopicPartition
from raylog.client.reading.decode import ColumnPiece, OpenPiece
from raylog.storage.batch.records import Grid

ROWS_OF_A_BATCH = 65_536
"""Pieces of a partition are joined into record batches of up to so many rows: each array costs some microseconds."""
_ARRAY_BYTES_MAX = 2**31 - 1


def table(pieces: Sequence[ColumnPiece], opened: Sequence[OpenPiece]) -> Any:
    """Make the `pyarrow.Table` of `ColumnBatch.to_arrow`. Raises ImportError without pyarrow."""
    import pyarrow as pa

    try:
        import numpy as np
    except ImportError:
        np = None  # type: ignore[assignment]
    schema = _schema()
    topics = list(dict.fromkeys(piece.partition.topic for piece in pieces))
    names = pa.array(topics, pa.string())
    batches = []
    for (topic, partition), run in _runs(pieces, opened):
        rows = sum(len(piece.offsets) for piece in run)
        arrays = [
            pa.DictionaryArray.from_arrays(_repeated(pa, np, topics.index(topic), rows), names, safe=False),
            _repeated(pa, np, partition, rows),
            _integers(pa, np, [piece.offsets for piece in run]),
            _timestamps(pa, np, run, rows).view(schema.field("timestamp").type),
            _binaries(pa, np, "keys", run, rows),
            _binaries(pa, np, "values", run, rows),
            _listed(pa, "headers", run, rows, schema.field("headers").type),
        ]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema)


@cache
def _schema() -> Any:
    import pyarrow as pa

    header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.schema(
        [
            ("topic", pa.dictionary(pa.int32(), pa.string())),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", header_type),
        ]
    )


def _runs(
    pieces: Sequence[ColumnPiece], opened: Sequence[OpenPiece]
) -> Iterator[tuple[TopicPartition, list[OpenPiece]]]:
    """Group consecutive pieces of a partition, each group for one Arrow record batch."""
    run: list[OpenPiece] = []
    of: TopicPartition | None = None
    rows = 0
    for piece, item in zip(pieces, opened, strict=True):
        if of is not None and (of != piece.partition or rows + piece.rows > ROWS_OF_A_BATCH):
            yield of, run
            run, rows = [], 0
        of = piece.partition
        run.append(item)
        rows += piece.rows
    if of is not None:
        yield of, run


def _repeated(pa: Any, np: Any, number: int, rows: int) -> Any:
    if np is None:
        return pa.repeat(pa.scalar(number, pa.int32()), rows)
    return pa.array(np.full(rows, number, dtype=np.int32))


def _integers(pa: Any, np: Any, columns: Sequence[range | list[int]]) -> Any:
    if np is None:
        return pa.array(list(chain.from_iterable(columns)), pa.int64())
    first, last = columns[0], columns[-1]
    if all(isinstance(column, range) for column in columns) and last[-1] - first[0] + 1 == sum(map(len, columns)):
        return pa.array(np.arange(first[0], last[-1] + 1, dtype=np.int64))  # no gap between the batches either
    return pa.array(np.concatenate([_numbers(np, column) for column in columns]))


def _numbers(np: Any, column: range | list[int]) -> Any:
    if isinstance(column, range):
        return np.arange(column.start, column.stop, dtype=np.int64)
    return np.array(column, dtype=np.int64)


def _timestamps(pa: Any, np: Any, run: list[OpenPiece], rows: int) -> Any:
    if np is None:
        return _integers(pa, np, [piece.column("timestamps") or [] for piece in run])
    moments = np.empty(rows, dtype=np.int64)
    row = 0
    for piece in run:
        end = row + len(piece.offsets)
        _set_moments(np, piece, moments[row:end])
        row = end
    return pa.array(moments)


def _set_moments(np: Any, piece: OpenPiece, moments: Any) -> None:
    """Fill in the timestamps of a piece. In a batch with a known layout each delta takes one byte."""
    layout = piece.layout
    if layout is None:
        moments[:] = piece.column("timestamps")
        return
    base_ms, is_final = piece.timestamp_base
    deltas = None if is_final else layout.timestamp_deltas
    if deltas is None:
        moments[:] = base_ms
    else:
        np.add(np.frombuffer(deltas, dtype=np.uint8)[piece.begin : piece.stop], base_ms, out=moments, dtype=np.int64)


def _binaries(pa: Any, np: Any, name: str, run: list[OpenPiece], rows: int) -> Any:
    """A column of keys or values."""
    grids: list[Grid] = []
    for piece in run if np is not None else ():
        grid = piece.grid(name)
        if grid is None:
            break
        grids.append(grid)
    size = sum(grid.width * len(piece.offsets) for grid, piece in zip(grids, run, strict=False))
    if len(grids) < len(run) or size > _ARRAY_BYTES_MAX:
        return _listed(pa, name, run, rows, pa.binary())
    data, ends = np.empty(size, dtype=np.uint8), np.zeros(rows + 1, dtype=np.int32)
    row = end = 0
    for grid, piece in zip(grids, run, strict=True):
        count, width = len(piece.offsets), grid.width
        after = end + count * width
        if width:
            _copy_strings(np, grid, piece.begin, data[end:after].view(f"V{width}"))
            ends[row + 1 : row + count + 1] = np.arange(end + width, after + 1, width, dtype=np.int32)
        else:
            ends[row + 1 : row + count + 1] = end
        row, end = row + count, after
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _copy_strings(np: Any, grid: Grid, begin: int, strings: Any) -> None:
    """Copy the strings of a grid, without their length prefixes, into an array."""
    first = grid.first + begin * grid.stride
    strings[:] = np.ndarray(len(strings), strings.dtype, grid.data, first, (grid.stride,))


def _listed(pa: Any, name: str, run: list[OpenPiece], rows: int, kind: Any) -> Any:
    """Any column, by way of Python lists."""
    if all(piece.has_only_nulls(name) for piece in run):
        return pa.nulls(rows, kind)
    columns = [piece.column(name) for piece in run]
    filled = (
        [None] * len(piece.offsets) if column is None else column for column, piece in zip(columns, run, strict=True)
    )
    return pa.array(list(chain.from_iterable(filled)), kind)
