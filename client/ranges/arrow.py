"""Makes Arrow record batches from fetched batches, a column at a time.

The caller gives the schema: the name of a column says what it holds, its type how. Used by reading.py. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from raylog.base.errors import CorruptMessage, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.ranges.buffers import integers, repeated
from raylog.client.ranges.fillers import Filler, Headers, Offsets, Strings, Timestamps
from raylog.client.ranges.pieces import PieceMaker
from raylog.client.reading.decode import FetchedBatch
from raylog.storage.batch.header import TIMESTAMP_TYPE_BIT

ROWS = 32_768
"""A record batch is complete when it has so many rows; the last batch of the log in it may add some more.

Twice as many are 2 to 3 % slower in Spark for records of 100 bytes: when they are sent, they are no longer in the
processor's cache. Half as many cost Spark more than they save."""
BYTES_MAX = 8 << 20
"""A record batch is also complete when the batches of the log in it have so many bytes, decompressed."""


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
"""Names, order and types of Spark's Kafka source; a reader may use any part of it."""


BODY_COLUMNS = frozenset({"key", "value", "timestamp", "headers"})
"""Columns that need the bodies of batches; the others follow from their headers (offsets unless there are gaps)."""
TYPE_NAMES = ("timestampType", "timestamp_type")
HEADER_COLUMNS = frozenset({"topic", "partition", *TYPE_NAMES})
"""Columns with one value for all records of a batch of the log."""


class ArrowBuilder:
    """Collects the records of one offset range, and returns them as record batches: `add` batches, then `take`."""

    def __init__(
        self, partition: TopicPartition, start: int, end: int, schema: Any = KAFKA_SCHEMA, *, check_crcs: bool = True
    ) -> None:
        """Only offsets from `start` up to, not including, `end` are used, wherever batches begin and end.

        `schema`: the columns to make, any of KAFKA_SCHEMA's in any order. A timestamp may also be int64 (milliseconds),
        headers a map, and timestampType be spelled timestamp_type. Raises ValueError for unknown columns.
        """
        unknown = [name for name in schema.names if name not in {*KAFKA_SCHEMA.names, *TYPE_NAMES}]
        if unknown:
            raise ValueError(f"No column is named {unknown[0]!r}; there are {', '.join(KAFKA_SCHEMA.names)}.")
        self.schema = schema
        self._partition = partition
        needs_bodies = not BODY_COLUMNS.isdisjoint(schema.names)
        self._maker = PieceMaker(partition, start, end, needs_bodies=needs_bodies, check_crcs=check_crcs)
        self._repeated: dict[str, Any] = {}
        # The last batch of the log in a record batch may add some more rows.
        self._room = min(ROWS + ROWS // 4, end - start)
        self._clear()

    def _clear(self) -> None:
        self._fillers: dict[str, Filler] = {
            name: self._filler(name, kind)
            for name, kind in zip(self.schema.names, self.schema.types, strict=True)
            if name not in HEADER_COLUMNS
        }
        self._types: list[tuple[int, int]] = []  # (timestamp type, rows) for each batch
        self._rows = self._bytes = 0

    def _filler(self, name: str, kind: Any) -> Filler:
        match name:
            case "key" | "value":
                return Strings(f"{name}s", self._room, BYTES_MAX + BYTES_MAX // 4)
            case "offset":
                return Offsets()
            case "timestamp":
                return Timestamps(self._room)
            case _:
                return Headers(kind)

    @property
    def is_full(self) -> bool:
        """Whether a record batch is complete, so that `take` should be called."""
        return self._rows >= ROWS or self._bytes >= BYTES_MAX

    def add(self, batch: FetchedBatch) -> None:
        """Add one batch; markers and aborted batches are skipped.

        Raises CorruptMessage. If the body cannot be read, all rows added since the last `take` are lost.
        """
        if batch.is_hidden:
            self._maker.check(batch)
            return
        piece = self._maker.piece(batch)
        if piece.rows:
            try:
                for filler in self._fillers.values():
                    filler.add(piece)
            except RaylogError:  # the columns have different lengths now, and `take` may be called after this error
                self._clear()
                raise
            self._types.append((1 if batch.header.attributes & TIMESTAMP_TYPE_BIT else 0, piece.rows))
            self._rows += piece.rows
            self._bytes += piece.body_bytes

    def take(self) -> Iterator[Any]:
        """Return the rows added so far, as one record batch or as equal parts of ROWS to twice as many rows.

        The parts are equal because each part but the first costs a copy when it is written, and a small rest costs as
        much as a large one. Raises CorruptMessage.
        """
        rows = self._rows
        if rows:
            columns = [
                self._column(name, kind) for name, kind in zip(self.schema.names, self.schema.types, strict=True)
            ]
            made = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            self._clear()
            parts = max(1, rows // ROWS)
            for first, end in pairwise(rows * part // parts for part in range(parts + 1)):
                yield made.slice(first, end - first)

    def _column(self, name: str, kind: Any) -> Any:
        match name:
            case "topic":
                return self._constant(name, self._partition.topic, kind)
            case "partition":
                return self._constant(name, self._partition.partition, kind)
            case "timestampType" | "timestamp_type":
                return self._timestamp_types(name, kind)
            case _:
                return self._filled(name, kind)

    def _filled(self, name: str, kind: Any) -> Any:
        try:
            return self._fillers[name].column(kind)
        except pa.ArrowInvalid as error:
            raise CorruptMessage(f"A {name} of {self._partition} is too large to be shown: {error}") from error

    def _constant(self, name: str, value: int | str, kind: Any) -> Any:
        """One value for all rows: a slice of an array that is made only once."""
        made = self._repeated.get(name)
        if made is None or len(made) < self._rows:
            made = self._repeated[name] = repeated(value, max(self._rows, ROWS), kind)
        return made.slice(0, self._rows)

    def _timestamp_types(self, name: str, kind: Any) -> Any:
        kinds = {found for found, _ in self._types}
        if len(kinds) == 1:
            found = kinds.pop()
            return self._constant(f"{name} {found}", found, kind)
        return integers(np.repeat(*np.array(self._types).T)).cast(kind)
