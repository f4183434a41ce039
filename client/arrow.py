"""Arrow tables from opened batches, used by `ColumnBatch.to_arrow` alone. Touches nothing.

Where a column's elements all have one length, as fixed-size records and timestamps of a moment have, its encoded bytes
are laid out as a grid and copied by numpy: no Python object is made for a record. Other columns, and all where numpy is
not installed (pyarrow does not need it), go through lists. pyarrow and numpy are imported in functions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from raylog.client.consuming.opening import OpenPiece
from raylog.core.ids import TopicPartition

if TYPE_CHECKING:
    from raylog.client.columns import ColumnPiece

ROWS_OF_A_BATCH = 65_536
"""Pieces of a partition are put together up to so many rows: each array costs Arrow some microseconds."""
_ARRAY_BYTES_MAX = 2**31 - 1
_BIN_8, _BIN_16, _BIN_32 = 0xC4, 0xC5, 0xC6
_SIZE_BYTES = {_BIN_8: 1, _BIN_16: 2, _BIN_32: 4}


def table(pieces: Sequence[ColumnPiece], opened: Sequence[OpenPiece]) -> Any:
    """A `pyarrow.Table`; see `ColumnBatch.to_arrow`. Raises ImportError without pyarrow."""
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
            _timestamps(pa, np, run).view(schema.field("timestamp").type),
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
    """Pieces that become one record batch of Arrow: consecutive ones of a partition."""
    run: list[OpenPiece] = []
    of: TopicPartition | None = None
    rows = 0
    for piece, one in zip(pieces, opened, strict=True):
        if of is not None and (of != piece.partition or rows + piece.rows > ROWS_OF_A_BATCH):
            yield of, run
            run, rows = [], 0
        of = piece.partition
        run.append(one)
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
    return pa.array(_joined(np, [_numbers(np, column) for column in columns]))


def _numbers(np: Any, column: range | list[int]) -> Any:
    if isinstance(column, range):
        return np.arange(column.start, column.stop, dtype=np.int64)
    return np.array(column, dtype=np.int64)


def _joined(np: Any, arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _timestamps(pa: Any, np: Any, run: list[OpenPiece]) -> Any:
    if np is None:
        return _integers(pa, np, [piece.column("timestamps") or [] for piece in run])
    return pa.array(_joined(np, [_moments(np, piece) for piece in run]))


def _moments(np: Any, piece: OpenPiece) -> Any:
    """The timestamps of a piece; deltas that take one byte each are themselves."""
    if piece.is_encoded:
        base_ms, is_final = piece.timestamp_base
        part = None if is_final else piece.encoded("timestamp_deltas")
        rows = piece.stop - piece.begin
        if part is None:
            return np.full(rows, base_ms, dtype=np.int64)
        deltas = np.frombuffer(part, dtype=np.uint8)
        if len(deltas) == piece.batch_rows and deltas.max() < 0x80:
            return deltas[piece.begin : piece.stop].astype(np.int64) + base_ms
    return np.array(piece.column("timestamps"), dtype=np.int64)


def _binaries(pa: Any, np: Any, name: str, run: list[OpenPiece], rows: int) -> Any:
    """Keys or values."""
    grids = []
    size = 0
    for piece in run:
        grid = None if np is None else _grid(np, piece, name)
        if grid is None:
            return _listed(pa, name, run, rows, pa.binary())
        size += grid.size
        grids.append(grid)
    if size > _ARRAY_BYTES_MAX:
        return _listed(pa, name, run, rows, pa.binary())
    data, ends = np.empty(size, dtype=np.uint8), np.zeros(rows + 1, dtype=np.int32)
    row = end = 0
    for grid in grids:
        count, width = grid.shape
        data[end : end + grid.size].reshape(count, width)[:] = grid
        ends[row + 1 : row + count + 1] = np.arange(end + width, end + grid.size + 1, width) if width else end
        row, end = row + count, end + grid.size
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _grid(np: Any, piece: OpenPiece, name: str) -> Any:
    """A row of bytes for each record of a piece, if all of its batch are as long as the first; None otherwise."""
    part = piece.encoded(name) if piece.is_encoded else None
    if part is None or part[0] not in _SIZE_BYTES:
        return None
    head = 1 + _SIZE_BYTES[part[0]]
    stride = head + int.from_bytes(part[1:head], "big")
    if stride * piece.batch_rows != len(part):
        return None
    grid = np.frombuffer(part, dtype=np.uint8).reshape(piece.batch_rows, stride)
    # The first element ends where the second begins, so if that begins alike it ends where the third begins, and so on.
    if not all((grid[:, at] == part[at]).all() for at in range(head)):
        return None
    return grid[piece.begin : piece.stop, head:]


def _listed(pa: Any, name: str, run: list[OpenPiece], rows: int, kind: Any) -> Any:
    """Any column, through lists."""
    columns = [piece.column(name) for piece in run]
    if all(column is None for column in columns):
        return pa.nulls(rows, kind)
    filled = (
        [None] * len(piece.offsets) if column is None else column for column, piece in zip(columns, run, strict=True)
    )
    return pa.array(list(chain.from_iterable(filled)), kind)
