"""From fetched batches to Arrow record batches in the schema of Kafka's source, a column at a time.

Runs in Spark's Python workers. Spark checks the schema of the first record batch for equality, so every type here is
the one that `to_arrow_schema` gives. Used by reader.py. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raylog.client.reading.decode import BatchOpener, FetchedBatch
from raylog.core.ids import TopicPartition

ROWS_MAX = 65_536
"""Rows of one record batch."""
BYTES_MAX = 8 << 20
"""Fetched bytes after which a record batch is given out, however few rows it has."""
LOG_APPEND_TIME_BIT = 0x08
"""Of a batch's attributes: the timestamps are the leader's, not the producer's."""


def row_schema(include_headers: bool) -> StructType:
    """The columns, exactly those of Spark's Kafka source."""
    schema = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
        ]
    )
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        schema.add("headers", ArrayType(header))
    return schema


class ArrowBuilder:
    """Collects the records of one offset range and gives them out as record batches."""

    def __init__(
        self, partition: TopicPartition, start: int, end: int, *, include_headers: bool = False, check_crcs: bool = True
    ) -> None:
        """Only offsets from `start` up to `end` (exclusive) are taken, wherever the batches begin and end."""
        self.schema: Any = to_arrow_schema(row_schema(include_headers), timezone="UTC")
        self._partition = partition
        self._start = start
        self._end = end
        self._include_headers = include_headers
        self._opener = BatchOpener(partition, check_crcs=check_crcs)
        self._clear()

    def _clear(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._headers: list[list[tuple[str, bytes | None]] | None] = []
        self._types: list[tuple[int, int]] = []  # (timestamp type, rows) for each batch
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to give a record batch out."""
        return len(self._offsets) >= ROWS_MAX or self._bytes >= BYTES_MAX

    def add(self, batch: FetchedBatch) -> None:
        """Add one batch. Raises CorruptMessage. Markers and aborted batches are skipped."""
        header = batch.header
        if batch.is_hidden:
            self._opener.check(batch)
            return
        columns = self._opener.columns(batch, self._start)
        offsets, timestamps, keys, values, headers = columns
        rows = len(offsets)
        if header.next_offset > self._end:
            rows = bisect_left(offsets, self._end)
            offsets, timestamps = offsets[:rows], timestamps[:rows]
            keys = None if keys is None else keys[:rows]
            values = None if values is None else values[:rows]
            headers = None if headers is None else headers[:rows]
        nulls = [None] * rows if keys is None or values is None or headers is None else []
        self._offsets.extend(offsets)
        self._timestamps.extend(timestamps)
        self._keys.extend(nulls if keys is None else keys)
        self._values.extend(nulls if values is None else values)
        if self._include_headers:
            # As Kafka's source has it: a record without headers has null, not an empty array.
            self._headers.extend(nulls if headers is None else [row or None for row in headers])
        self._types.append((1 if header.attributes & LOG_APPEND_TIME_BIT else 0, rows))
        self._bytes += header.size

    def take(self) -> Iterator[Any]:
        """Return the rows added so far, as record batches of at most ROWS_MAX rows."""
        rows = len(self._offsets)
        if rows:
            made = pa.RecordBatch.from_arrays(self._columns(rows), schema=self.schema)
            self._clear()
            for first in range(0, rows, ROWS_MAX):
                yield made.slice(first, ROWS_MAX)

    def _columns(self, rows: int) -> list[Any]:
        topic, partition = self._partition
        times = pa.array(self._timestamps, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        columns = [
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            pa.repeat(pa.scalar(topic, pa.string()), rows),
            pa.repeat(pa.scalar(partition, pa.int32()), rows),
            pa.array(self._offsets, pa.int64()),
            times,
            self._timestamp_types(rows),
        ]
        if self._include_headers:
            columns.append(pa.array(self._headers, self.schema.field("headers").type))
        return columns

    def _timestamp_types(self, rows: int) -> Any:
        kinds = {kind for kind, _ in self._types}
        if len(kinds) == 1:
            return pa.repeat(pa.scalar(kinds.pop(), pa.int32()), rows)
        return pa.array([kind for kind, count in self._types for _ in range(count)], pa.int32())
