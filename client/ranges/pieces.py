"""Pieces: consecutive records of one fetched batch, read a column at a time into numpy and Arrow. Pure.

Only wanted columns are read; if none of them is in the batch's body, the body is not even decompressed. Used by
fillers.py and arrow.py.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.ranges import strings
from raylog.client.ranges.buffers import texts
from raylog.client.ranges.kafka_rows import KafkaRows
from raylog.client.ranges.layouts import regular
from raylog.client.reading.decode import BatchOpener, FetchedBatch, OpenPiece, corrupt
from raylog.storage.batch.columns import HeaderColumn
from raylog.storage.batch.header import MAGIC_KAFKA, TIMESTAMP_TYPE_BIT, BatchHeader
from raylog.storage.batch.records import RECORDS_MAX, Grid, body_of
from raylog.storage.errors import CorruptBatch


class Piece(Protocol):
    """The wanted records of one batch. Every method raises CorruptMessage for a body that cannot be read."""

    rows: int
    body_bytes: int
    """Bytes of the whole body, decompressed."""

    @property
    def offsets(self) -> range | Any:
        """The offsets: a range of step 1 if there are no gaps, else a list or a numpy array."""

    def set_moments(self, out: Any) -> None:
        """Fill an int64 array of `rows` elements with timestamps, in milliseconds."""

    def grid(self, name: str) -> tuple[Grid, int, int] | None:
        """`keys` or `values` of the batch as a grid, the piece's first row and its count; None = lengths differ."""

    def strings(self, name: str) -> Any:
        """`keys` or `values` as an Arrow array of binary; None = all are null."""

    def headers(self) -> HeaderColumn | None:
        """The headers of each record; None = no record has any."""


class PlainPiece:
    """A piece of a batch whose body is not opened: its offsets follow from its header."""

    def __init__(self, header: BatchHeader, start: int, end: int) -> None:
        self.offsets = range(max(start, header.base_offset), min(end, header.next_offset))
        self.rows = len(self.offsets)
        self.body_bytes = 0

    def set_moments(self, out: Any) -> None:
        raise AssertionError("timestamps need the body")

    def grid(self, name: str) -> tuple[Grid, int, int] | None:
        raise AssertionError("strings need the body")

    def strings(self, name: str) -> Any:
        raise AssertionError("strings need the body")

    def headers(self) -> HeaderColumn | None:
        raise AssertionError("headers need the body")


class ColumnsPiece:
    """A piece of a batch of magic 77 (Raylog's columns)."""

    def __init__(self, piece: OpenPiece) -> None:
        source = piece.source
        self._piece = piece
        self._regular = regular(source, piece.rows_of_batch)
        self.offsets = piece.offsets
        self.rows = len(piece.offsets)
        self.body_bytes = source[2] - source[1]

    def set_moments(self, out: Any) -> None:
        piece = self._piece
        base_ms, is_final = piece.timestamp_base
        if is_final:
            out[:] = base_ms
        elif self._regular is None:
            out[:] = piece.column("timestamps")
        elif self._regular.deltas is None:
            out[:] = base_ms
        else:
            np.add(self._regular.deltas[piece.begin : piece.stop], base_ms, out=out, dtype=np.int64)

    def grid(self, name: str) -> tuple[Grid, int, int] | None:
        grid = None if self._regular is None else self._regular.strings.get(name)
        return None if grid is None else (grid, self._piece.begin, self.rows)

    def strings(self, name: str) -> Any:
        if self._regular is not None and name in self._regular.strings:
            return None  # all are null: another regular column would have been a grid
        column = self._piece.column(name)
        return None if column is None else texts(column, pa.binary())

    def headers(self) -> HeaderColumn | None:
        if self._regular is not None and self._regular.has_no_headers:
            return None
        return None if self._piece.has_only_nulls("headers") else self._piece.column("headers")


class KafkaPiece:
    """A piece of a batch of magic 2 (Kafka's rows)."""

    def __init__(
        self, partition: TopicPartition, batch: FetchedBatch, start: int, end: int, next_offset: int | None
    ) -> None:
        """`next_offset`: after the batch, for errors; None = its header was not checked. Raises CorruptBatch."""
        header = batch.header
        if header.record_count > RECORDS_MAX:
            raise CorruptBatch(f"{header.record_count} records in one batch are too many")
        self._partition, self._header, self._next_offset = partition, header, next_offset
        self._rows = KafkaRows(body_of(batch.buffer, batch.place, header), header)
        self._begin, self._stop = np.searchsorted(self._rows.offsets, (start, end)).tolist()
        self.rows = self._stop - self._begin
        self.body_bytes = len(self._rows.body)

    @property
    def offsets(self) -> Any:
        return self._rows.offsets[self._begin : self._stop]

    def set_moments(self, out: Any) -> None:
        if self._header.attributes & TIMESTAMP_TYPE_BIT:
            out[:] = self._header.max_timestamp
        else:
            np.add(self._rows.time_deltas[self._begin : self._stop], self._header.base_timestamp, out=out)

    def grid(self, name: str) -> tuple[Grid, int, int] | None:
        return None

    def strings(self, name: str) -> Any:
        sizes = self._rows.sizes[name][self._begin : self._stop]
        if bool((sizes < 0).all()):
            return None
        data = np.frombuffer(self._rows.body, dtype=np.uint8)
        return strings.of_places(data, self._rows.firsts[name][self._begin : self._stop], sizes)

    def headers(self) -> HeaderColumn | None:
        if not self._rows.has_headers():
            return None
        try:
            return self._rows.headers(self._begin, self._stop)
        except CorruptBatch as error:
            raise corrupt(self._partition, self._header.base_offset, error, self._next_offset) from error


class PieceMaker:
    """Makes pieces of the batches of one range, from offset `start` up to, not including, `end`."""

    def __init__(
        self, partition: TopicPartition, start: int, end: int, *, needs_bodies: bool, check_crcs: bool = True
    ) -> None:
        self._partition = partition
        self._start, self._end = start, end
        self._needs_bodies = needs_bodies
        self._check_crcs = check_crcs
        self._opener = BatchOpener(partition, check_crcs=check_crcs)

    def piece(self, batch: FetchedBatch) -> Piece:
        """The wanted records of a batch that is not hidden. Raises CorruptMessage."""
        header = batch.header
        if not batch.is_near:  # a batch from a local file was checked when it was read
            self._opener.check(batch)
        if not self._needs_bodies and header.record_count == header.last_offset_delta + 1:
            return PlainPiece(header, self._start, self._end)
        if header.magic != MAGIC_KAFKA:
            return ColumnsPiece(self._opener.piece(batch, self._start, self._end))
        next_offset = header.next_offset if self._check_crcs else None
        try:
            return KafkaPiece(self._partition, batch, self._start, self._end, next_offset)
        except RaylogError as error:
            raise corrupt(self._partition, header.base_offset, error, next_offset) from error

    def check(self, batch: FetchedBatch) -> None:
        """Check a hidden batch. Raises CorruptMessage."""
        if not batch.is_near:
            self._opener.check(batch)
