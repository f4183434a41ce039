"""The live rows of a coordinator's log: the last one of each key, without tombstones.

The log is compacted, so rows of different keys are independent, and only the last one of a key counts. Whole batches go
into one dictionary, by their keys as they are stored; only what is left at the end is decoded. Most of a log that was
not cleaned yet is outdated, so that it is loaded several times faster than row by row. Used by ``state_log.py``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import decode_batch

Row = tuple[list[object], list[object]]
"""Key and value of one live record."""

_decoder = msgspec.msgpack.Decoder()


class LiveRows:
    """Gathers batches in log order, then yields the rows that are live."""

    def __init__(self) -> None:
        """Start empty."""
        self._last: dict[bytes | None, bytes | None] = {}
        self.rows_read = 0
        """How many rows were gathered, outdated ones and tombstones included."""

    def __len__(self) -> int:
        """Return how many keys there are, those of tombstones included."""
        return len(self._last)

    def __iter__(self) -> Iterator[Row]:
        """Yield each live row."""
        for key, value in self._last.items():
            if key is not None and value is not None:
                yield _decoder.decode(key), _decoder.decode(value)

    def gather(self, payload: Buffer, end: int) -> int | None:
        """Take the whole batches of a fetch that begin below ``end``; return the offset behind them, None = no batch.

        Raises CorruptBatch.
        """
        behind: int | None = None
        for position, header in iter_headers(payload):
            behind = header.next_offset
            if header.is_control or header.base_offset >= end:
                continue
            columns = decode_batch(payload, position, header)
            self.rows_read += header.record_count
            if columns.keys is not None:
                self._last.update(zip(columns.keys, columns.values or [None] * header.record_count, strict=True))
        return behind
