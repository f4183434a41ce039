"""`ColumnBatch`: records as columns, each decoded when it is asked for. What `consume_batch()` returns.

A batch of the log is a piece; its checksum was verified when it was taken from the buffer, its body is opened at the
first look at a column. No object is made for a record but its bytes, and for Arrow not those either once they are
copied. Touches nothing; pyarrow is imported by `to_arrow` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, NamedTuple

from raylog.client.consuming.opening import BatchOpener, FetchedBatch
from raylog.client.types import Header
from raylog.core.ids import TopicPartition
from raylog.storage.records import Columns

ROWS_FROM_WHICH_A_PIECE_STANDS_ALONE = 4096
"""Smaller pieces are put together before Arrow sees them: an array costs it some microseconds, however short."""


class ColumnPiece(NamedTuple):
    """Consecutive records of one batch of one partition: those at `first` offset and behind it, below `end`."""

    partition: TopicPartition
    batch: FetchedBatch
    opener: BatchOpener
    first: int
    end: int
    rows: int

    def columns(self) -> Columns:
        """Open the batch. Raises CorruptMessage when its producer wrote what nobody can read."""
        return self.opener.range(self.batch, self.first, self.end)


class ColumnBatch:
    """Records of one or more partitions, those of each in the order of their offsets. Empty when nothing came.

    All columns have the length of the batch and the same order. Keys and values are bytes, or None. Looking at a column
    raises CorruptMessage if a producer wrote a batch that nobody can read; the consumer's position is behind it then.
    """

    __slots__ = ("_columns", "_pieces", "_rows")

    def __init__(self, pieces: list[ColumnPiece]) -> None:
        self._pieces = pieces
        self._rows = sum(piece.rows for piece in pieces)
        self._columns: list[Columns] | None = None

    def __len__(self) -> int:
        """How many records there are."""
        return self._rows

    def __repr__(self) -> str:
        return f"<ColumnBatch of {self._rows} records of {len(self.partitions)} partitions>"

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the records come from."""
        return list(dict.fromkeys(piece.partition for piece in self._pieces))

    def by_partition(self) -> dict[TopicPartition, ColumnBatch]:
        """The same records, apart by partition."""
        return {
            partition: ColumnBatch([piece for piece in self._pieces if piece.partition == partition])
            for partition in self.partitions
        }

    # Columns

    @property
    def topics(self) -> list[str]:
        """The topic of each record."""
        return list(chain.from_iterable(repeat(piece.partition.topic, piece.rows) for piece in self._pieces))

    @property
    def partition_numbers(self) -> list[int]:
        """The partition of each record."""
        return list(chain.from_iterable(repeat(piece.partition.partition, piece.rows) for piece in self._pieces))

    @property
    def offsets(self) -> list[int]:
        """The offset of each record."""
        return list(chain.from_iterable(columns.offsets for columns in self._opened()))

    @property
    def timestamps_ms(self) -> list[int]:
        """The timestamp of each record, in milliseconds since 1970."""
        return list(chain.from_iterable(columns.timestamps for columns in self._opened()))

    @property
    def keys(self) -> list[bytes | None]:
        """The key of each record."""
        return list(chain.from_iterable(columns.keys or _nulls(columns) for columns in self._opened()))

    @property
    def values(self) -> list[bytes | None]:
        """The value of each record."""
        return list(chain.from_iterable(columns.values or _nulls(columns) for columns in self._opened()))

    @property
    def headers(self) -> list[tuple[Header, ...]]:
        """The headers of each record."""
        return [
            tuple(row or ()) for columns in self._opened() for row in (columns.headers or repeat(None, _rows(columns)))
        ]

    def to_pylist(self) -> list[dict[str, Any]]:
        """A dict for each record, with the names of `to_arrow`."""
        names = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
        columns = (
            self.topics,
            self.partition_numbers,
            self.offsets,
            self.timestamps_ms,
            self.keys,
            self.values,
            self.headers,
        )
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with the columns topic, partition, offset, timestamp, key, value and headers.

        The schema is always the same: topic is a dictionary of text, timestamp is in milliseconds and UTC, headers is a
        list of (key, value), null for a record without. Raises ImportError without pyarrow.
        """
        import pyarrow as pa
        import pyarrow.compute

        header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        schema = pa.schema(
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
        topics = list(dict.fromkeys(piece.partition.topic for piece in self._pieces))
        batches = [_arrow_batch(pa, schema, topics, run) for run in self._runs()]
        return pa.Table.from_batches(batches, schema)

    # Inside

    def _opened(self) -> list[Columns]:
        if self._columns is None:
            self._columns = [piece.columns() for piece in self._pieces]
        return self._columns

    def _runs(self) -> Iterator[list[tuple[TopicPartition, Columns]]]:
        """Pieces that become one record batch of Arrow: a large one alone, small ones of a partition together."""
        run: list[tuple[TopicPartition, Columns]] = []
        rows = 0
        for piece, columns in zip(self._pieces, self._opened(), strict=True):
            if run and (rows >= ROWS_FROM_WHICH_A_PIECE_STANDS_ALONE or run[-1][0] != piece.partition):
                yield run
                run, rows = [], 0
            run.append((piece.partition, columns))
            rows += piece.rows
        if run:
            yield run


def _arrow_batch(pa: Any, schema: Any, topics: list[str], run: list[tuple[TopicPartition, Columns]]) -> Any:
    """One record batch from pieces of one partition."""
    topic, partition = run[0][0]
    pieces = [columns for _, columns in run]
    rows = sum(map(_rows, pieces))

    def column(name: str, kind: Any) -> Any:
        parts = [getattr(columns, name) for columns in pieces]
        if all(part is None for part in parts):
            return pa.nulls(rows, kind)
        if len(parts) == 1:
            return pa.array(parts[0], kind)
        filled = (_nulls(columns) if part is None else part for part, columns in zip(parts, pieces, strict=True))
        return pa.array(list(chain.from_iterable(filled)), kind)

    timestamps = pa.concat_arrays([_integers(pa, columns.timestamps) for columns in pieces])
    arrays = [
        pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(topics.index(topic), pa.int32()), rows), pa.array(topics)),
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        pa.concat_arrays([_integers(pa, columns.offsets) for columns in pieces]),
        timestamps.cast(schema.field("timestamp").type),
        column("keys", pa.binary()),
        column("values", pa.binary()),
        column("headers", schema.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _integers(pa: Any, numbers: range | list[int]) -> Any:
    """An Arrow array, without a step for each number where they count up or are all the same."""
    rows = len(numbers)
    if isinstance(numbers, range):
        ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
        return pa.compute.cumulative_sum(ones, start=numbers.start - 1)
    if numbers.count(numbers[0]) == rows:
        return pa.repeat(pa.scalar(numbers[0], pa.int64()), rows)
    return pa.array(numbers, pa.int64())


def _rows(columns: Columns) -> int:
    return len(columns.offsets)


def _nulls(columns: Columns) -> list[None]:
    return [None] * len(columns.offsets)
