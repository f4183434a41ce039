"""Decodes the records of a magic 2 batch (from Kafka's clients) into columns, with numpy. Used by pieces.py. Pure.

A field of all records is read in one step; only the place of a record depends on the record before it. The checks are
those of raylog.storage.batch.kafka_rows, except that headers are checked only when they are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raylog.client.ranges.integers import record_places, varints_at
from raylog.storage.batch.columns import HeaderColumn
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import BatchHeader
from raylog.storage.batch.kafka_rows import RECORD_BYTES_MIN, decode_headers
from raylog.storage.errors import CorruptBatch


class KafkaRows:
    """The decoded records: numpy arrays with one entry per record. Raises CorruptBatch for a malformed body."""

    __slots__ = ("_counts", "_ends", "_header_places", "body", "firsts", "offsets", "sizes", "time_deltas")

    def __init__(self, body: Buffer, header: BatchHeader) -> None:
        data = bytes(body)
        rows = header.record_count
        if rows * RECORD_BYTES_MIN > len(data):
            raise CorruptBatch(f"{rows} records cannot be in {len(data)} bytes")
        self.body = data
        self.firsts: dict[str, Any] = {}
        """For "keys" and "values" the place in `body` where each begins."""
        self.sizes: dict[str, Any] = {}
        """For "keys" and "values" the length of each; -1 = null."""
        try:
            self._read(data, rows, header)
        except ValueError as error:
            raise CorruptBatch(str(error)) from None

    def _read(self, data: bytes, rows: int, header: BatchHeader) -> None:
        view = np.frombuffer(data, dtype=np.uint8)
        places = record_places(data, rows)
        if places[-1] != len(data):
            raise ValueError("bytes are left behind its last record")
        self._ends = places[1:]
        _, at = varints_at(view, places[:-1])
        self.time_deltas, at = varints_at(view, at + 1)  # after the record's attributes, one byte
        deltas, at = varints_at(view, at)
        self.offsets = deltas + header.base_offset
        if rows and (
            self.offsets[0] < header.base_offset
            or self.offsets[-1] > header.last_offset
            or bool((self.offsets[1:] <= self.offsets[:-1]).any())
        ):
            raise ValueError("the offsets in it do not rise within its range")
        for name in ("keys", "values"):
            sizes, at = varints_at(view, at)
            if bool(((sizes < -1) | (sizes > len(data))).any()):
                raise ValueError("a length in its records is impossible")
            self.firsts[name], self.sizes[name] = at, sizes
            at = at + np.maximum(sizes, 0)
            if bool((at >= self._ends).any()):
                raise ValueError("a record in it does not end where its length says")
        self._counts, self._header_places = varints_at(view, at)
        is_wrong = np.where(self._counts == 0, self._header_places != self._ends, self._counts < 0)
        if bool((is_wrong | (self._header_places > self._ends)).any()):
            raise ValueError("a record in it does not end where its length says")

    def headers(self, begin: int, stop: int) -> HeaderColumn:
        """The headers of the records with index `begin` up to `stop`. Raises CorruptBatch."""
        found: HeaderColumn = [None] * (stop - begin)
        for row in np.flatnonzero(self._counts[begin:stop]).tolist():
            index = begin + row
            found[row] = decode_headers(
                self.body, int(self._header_places[index]), int(self._counts[index]), int(self._ends[index])
            )
        return found

    def has_headers(self) -> bool:
        """Whether any record has headers."""
        return bool(self._counts.any())
