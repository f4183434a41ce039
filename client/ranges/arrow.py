"""From fetched batches to Arrow record batches, a column at a time.

The caller gives the schema: the names say what a column holds, the types how. Used by reading.py. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from raylog.client.ranges import strings
from raylog.client.ranges.buffers import integers, repeated, room_for
from raylog.client.ranges.pieces import Piece, PieceMaker
from raylog.client.reading.decode import FetchedBatch
from raylog.core.errors import CorruptMessage
from raylog.core.ids import TopicPartition
from raylog.storage.batch.header import TIMESTAMP_TYPE_BIT

ROWS = 65_536
"""A record batch is given out when it has so many rows; the batch of the log that fills it may bring some more."""
BYTES_MAX = 8 << 20
"""Bytes of opened batches after which a record batch is given out, however few rows it has."""


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


BODY_COLUMNS = frozenset({"key", "value", "timestamp", "headers"})
"""Columns that are in the bodies of batches; the others follow from their headers."""
TYPE_NAMES = ("timestampType", "timestamp_type")
_MS = pa.timestamp("ms", "UTC")


class ArrowBuilder:
    """Collects the records of one offset range and gives them out as record batches."""

    def __init__(
        self, partition: TopicPartition, start: int, end: int, schema: Any = KAFKA_SCHEMA, *, check_crcs: bool = True
    ) -> None:
        """Only offsets from `start` up to `end` (exclusive) are taken, wherever the batches begin and end.

        `schema`: the columns to make, any of KAFKA_SCHEMA's in any order. A timestamp may also be an int64 (of
        milliseconds), headers a map, and timestampType be spelled timestamp_type. ValueError for others.
        """
        unknown = [name for name in schema.names if name not in {*KAFKA_SCHEMA.names, *TYPE_NAMES}]
        if unknown:
            raise ValueError(f"No column is named {unknown[0]!r}; there are {', '.join(KAFKA_SCHEMA.names)}.")
        self.schema = schema
        self._partition = partition
        needs_bodies = not BODY_COLUMNS.isdisjoint(schema.names)
        self._maker = PieceMaker(partition, start, end, needs_bodies=needs_bodies, check_crcs=check_crcs)
        self._repeated: dict[str, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._pieces: list[Piece] = []
        self._types: list[tuple[int, int]] = []  # (timestamp type, rows) for each batch
        self._rows = self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to give a record batch out."""
        return self._rows >= ROWS or self._bytes >= BYTES_MAX

    def add(self, batch: FetchedBatch) -> None:
        """Add one batch. Raises CorruptMessage. Markers and aborted batches are skipped."""
        if batch.is_hidden:
            self._maker.check(batch)
            return
        piece = self._maker.piece(batch)
        if piece.rows:
            self._pieces.append(piece)
            self._types.append((1 if batch.header.attributes & TIMESTAMP_TYPE_BIT else 0, piece.rows))
            self._rows += piece.rows
            self._bytes += piece.body_bytes

    def take(self) -> Iterator[Any]:
        """Return the rows added so far: one record batch, or equal parts of ROWS to twice as many. Raises
        CorruptMessage.

        Writing a part that does not begin at the first row costs a copy, and a small rest as much as a large one.
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
            case "key" | "value":
                return self._strings(f"{name}s")
            case "topic":
                return self._constant(name, self._partition.topic, kind)
            case "partition":
                return self._constant(name, self._partition.partition, kind)
            case "offset":
                return integers(self._numbers(lambda piece, out: piece.set_offsets(out)))
            case "timestamp":
                return self._timestamps(kind)
            case "headers":
                return self._headers(kind)
            case _:
                return self._timestamp_types(name, kind)

    def _constant(self, name: str, value: int | str, kind: Any) -> Any:
        """A value for all rows; a prefix of one array that is made once."""
        made = self._repeated.get(name)
        if made is None or len(made) < self._rows:
            made = self._repeated[name] = repeated(value, max(self._rows, ROWS), kind)
        return made.slice(0, self._rows)

    def _numbers(self, fill: Callable[[Piece, Any], None]) -> Any:
        found = room_for(self._rows, np.int64)
        row = 0
        for piece in self._pieces:
            fill(piece, found[row : row + piece.rows])
            row += piece.rows
        return found

    def _timestamps(self, kind: Any) -> Any:
        found = integers(self._numbers(lambda piece, out: piece.set_moments(out)))
        if pa.types.is_integer(kind):
            return found
        try:
            return found.view(_MS).cast(kind)
        except pa.ArrowInvalid as error:
            raise CorruptMessage(f"A timestamp of {self._partition} is too large to be shown: {error}") from error

    def _strings(self, name: str) -> Any:
        """Keys or values: neighbours of one length are copied together, and neighbours without any are one array."""
        made: list[Any] = []
        kinds = ((piece, piece.grid(name)) for piece in self._pieces)
        for is_grid, neighbours in groupby(kinds, lambda item: item[1] is not None):
            if is_grid:
                made.append(strings.of_grids([grid for _, grid in neighbours if grid is not None]))
                continue
            found = ((piece.rows, piece.strings(name)) for piece, _ in neighbours)
            for is_null, group in groupby(found, lambda item: item[1] is None):
                some = list(group)
                made += [pa.nulls(sum(rows for rows, _ in some), pa.binary())] if is_null else [it for _, it in some]
        return made[0] if len(made) == 1 else pa.concat_arrays(made)

    def _headers(self, kind: Any) -> Any:
        made = []
        for piece in self._pieces:
            found = piece.headers()
            made.append(pa.nulls(piece.rows, kind) if found is None else strings.of_headers(found, kind))
        return made[0] if len(made) == 1 else pa.concat_arrays(made)

    def _timestamp_types(self, name: str, kind: Any) -> Any:
        kinds = {found for found, _ in self._types}
        if len(kinds) == 1:
            found = kinds.pop()
            return self._constant(f"{name} {found}", found, kind)
        return integers(np.repeat(*np.array(self._types).T)).cast(kind)
