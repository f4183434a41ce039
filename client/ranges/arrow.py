"""From fetched batches to Arrow record batches, a column at a time.

The caller gives the schema: the names say what a column holds, the types how. Used by reading.py. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from raylog.client.reading.decode import BatchOpener, FetchedBatch
from raylog.core.ids import TopicPartition

ROWS_MAX = 65_536
"""Rows of one record batch."""
BYTES_MAX = 8 << 20
"""Fetched bytes after which a record batch is given out, however few rows it has."""
LOG_APPEND_TIME_BIT = 0x08
"""Of a batch's attributes: the timestamps are the leader's, not the producer's."""


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KAFKA_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""Names, order and types of Spark's Kafka source; a reader may be given any part of it."""


class ArrowBuilder:
    """Collects the records of one offset range and gives them out as record batches."""

    def __init__(
        self, partition: TopicPartition, start: int, end: int, schema: Any = KAFKA_SCHEMA, *, check_crcs: bool = True
    ) -> None:
        """Only offsets from `start` up to `end` (exclusive) are taken, wherever the batches begin and end.

        `schema`: the columns to make, any of KAFKA_SCHEMA's in any order.
        """
        self.schema = schema
        self._partition = partition
        self._start = start
        self._end = end
        self._include_headers = "headers" in schema.names
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
        return [self._column(name, kind, rows) for name, kind in zip(self.schema.names, self.schema.types, strict=True)]

    def _column(self, name: str, kind: Any, rows: int) -> Any:
        match name:
            case "key":
                return pa.array(self._keys, kind)
            case "value":
                return pa.array(self._values, kind)
            case "topic":
                return pa.repeat(pa.scalar(self._partition.topic, kind), rows)
            case "partition":
                return pa.repeat(pa.scalar(self._partition.partition, kind), rows)
            case "offset":
                return pa.array(self._offsets, kind)
            case "timestamp":
                return pa.array(self._timestamps, pa.timestamp("ms", "UTC")).cast(kind)
            case "timestampType":
                return self._timestamp_types(rows)
            case "headers":
                return pa.array(self._headers, kind)
            case _:
                raise ValueError(f"No column is named {name!r}; there are {', '.join(KAFKA_SCHEMA.names)}.")

    def _timestamp_types(self, rows: int) -> Any:
        kinds = {kind for kind, _ in self._types}
        if len(kinds) == 1:
            return pa.repeat(pa.scalar(kinds.pop(), pa.int32()), rows)
        return pa.array([kind for kind, count in self._types for _ in range(count)], pa.int32())
