"""The rows of an owned log as they are read: all of them in order, or only those that are live.

A row is a record with key and value in msgpack; a tombstone has no value. A row that cannot be read is skipped and
noted, since it must not keep its owner from serving everything else. Used by ``runtime.py``. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from raylog.storage.batch.columns import Columns
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import PLAIN, BatchHeader, check_crc, iter_headers
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch
from raylog.storage.errors import CorruptBatch

ROW_HEAD_BYTES: Final = 10
"""Room for the heads of a row's key and value in a batch."""

EncodedRow = tuple[bytes, bytes | None]
"""Key and value of one record, in msgpack; a None value is a tombstone."""
Row = tuple[list[object], list[object] | None]
"""Key and value of one row."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encoded_row(key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
    """Return a row in its stored form, and the most bytes that it takes in a batch."""
    packed = _encoder.encode(key), None if value is None else _encoder.encode(value)
    return packed, len(packed[0]) + len(packed[1] or b"") + ROW_HEAD_BYTES


def encode_rows(rows: Sequence[EncodedRow], now_ms: int, meta: BatchMeta = PLAIN) -> bytes:
    """Return rows as one batch with this timestamp."""
    keys: list[bytes | None] = [key for key, _ in rows]
    return encode_batch(keys, [value for _, value in rows], [now_ms] * len(rows), meta=meta)


class StoredRows(Protocol):
    """Takes batches in log order, and yields rows once they are ready to be replayed."""

    rows_read: int
    """How many rows were gathered, including outdated ones and tombstones."""

    @property
    def unreadable(self) -> dict[int, str]:
        """Offsets of rows and of batches that cannot be read, with the reason."""

    def gather(self, payload: Buffer, end: int) -> int | None:
        """Take the complete batches of a fetch that begin below ``end``; returns the offset behind them.

        None: there was no batch. A batch that cannot be decoded is noted and skipped if its checksum is right. Raises
        CorruptBatch if the checksum is wrong.
        """

    def complete(self) -> None:
        """Note that no more batches come."""

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows that are ready, each once; one that is no row is noted and skipped."""

    def pass_over(self, error: Exception) -> None:
        """Note that the row that was yielded last cannot be read, and why."""

    def look_up_from(self, start: int) -> int | None:
        """Return where to read on for the offsets of unreadable rows, first from ``start``; None = all are known."""

    def look_up(self, payload: Buffer, end: int) -> None:
        """Take the batches of a fetch at :meth:`look_up_from`."""


class EachRow:
    """All rows in log order, as soon as they were read: for a log whose rows build on each other."""

    def __init__(self) -> None:
        """Start empty."""
        self._ready: deque[tuple[int, bytes, bytes | None]] = deque()
        self._current = -1
        """Offset of the row that was yielded last."""
        self.rows_read = 0
        self._unreadable: dict[int, str] = {}

    @property
    def unreadable(self) -> dict[int, str]:
        """Offsets of rows and of batches that cannot be read, with the reason."""
        return self._unreadable

    def gather(self, payload: Buffer, end: int) -> int | None:
        """Take batches; see :class:`StoredRows`."""
        behind: int | None = None
        for position, header in iter_headers(payload):
            behind = header.next_offset
            columns = _opened(payload, position, header, end, self._unreadable)
            if columns is None or columns.keys is None:
                continue
            self.rows_read += header.record_count
            rows = zip(columns.offsets, columns.keys, _values(columns), strict=True)
            self._ready += [(offset, key, value) for offset, key, value in rows if key is not None]
        return behind

    def complete(self) -> None:
        """Do nothing: each row was ready at once."""

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows that were gathered since."""
        while self._ready:
            self._current, key, value = self._ready.popleft()
            row = _decoded(key, value, self)
            if row is not None:
                yield row

    def pass_over(self, error: Exception) -> None:
        """Note that the row that was yielded last cannot be read, and why."""
        self._unreadable[self._current] = _reason(error)

    def look_up_from(self, start: int) -> int | None:
        """Return None: the offsets are known."""
        return None

    def look_up(self, payload: Buffer, end: int) -> None:
        """Do nothing: the offsets are known."""


class LiveRows:
    """The last row of each key, without tombstones, once the log was read: for a log that is compacted.

    Rows of different keys are independent there. So whole batches go into one dictionary, by their encoded keys, and
    only what is left at the end is decoded. Most of a log that was not cleaned yet is outdated, so this is several
    times faster than decoding row by row.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._last: dict[bytes | None, bytes | None] = {}
        self._ready: Iterator[tuple[bytes | None, bytes | None]] = iter(())
        self._current: bytes = b""
        """Key of the row that was yielded last."""
        self._passed_over: dict[bytes, str] = {}
        """Encoded keys of live rows that cannot be read, with the reason."""
        self._places: dict[bytes, int] = {}
        """The last offsets of these, as far as they were looked up."""
        self._looked_to: int | None = None
        """How far the log was read again to look them up; None = not at all."""
        self._damaged: dict[int, str] = {}
        self.rows_read = 0

    def gather(self, payload: Buffer, end: int) -> int | None:
        """Take batches; see :class:`StoredRows`."""
        behind: int | None = None
        for position, header in iter_headers(payload):
            behind = header.next_offset
            columns = _opened(payload, position, header, end, self._damaged)
            if columns is not None:
                self.rows_read += header.record_count
                if columns.keys is not None:
                    self._last.update(zip(columns.keys, _values(columns), strict=True))
        return behind

    def complete(self) -> None:
        """Note that no more batches come: the live rows are ready."""
        self._ready, self._last = iter(self._last.items()), {}

    def __iter__(self) -> Iterator[Row]:
        """Yield each live row, once the log was read."""
        for key, value in self._ready:
            if key is None or value is None:
                continue
            self._current = key
            row = _decoded(key, value, self)
            if row is not None:
                yield row

    def pass_over(self, error: Exception) -> None:
        """Note that the row that was yielded last cannot be read, and why."""
        self._passed_over[self._current] = _reason(error)

    def look_up_from(self, start: int) -> int | None:
        """Return where to read on to find the offsets of unreadable rows; None = there are none."""
        if not self._passed_over:
            return None
        return start if self._looked_to is None else self._looked_to

    def look_up(self, payload: Buffer, end: int) -> None:
        """Find the last offset below ``end`` of each unreadable row."""
        for position, header in iter_headers(payload):
            self._looked_to = header.next_offset
            columns = _opened(payload, position, header, end, {})
            if columns is not None and columns.keys is not None:
                rows = zip(columns.offsets, columns.keys, strict=True)
                self._places |= {key: at for at, key in rows if key is not None and key in self._passed_over}

    @property
    def unreadable(self) -> dict[int, str]:
        """Offsets of batches that cannot be read, and of rows as far as they were looked up, with the reason."""
        return self._damaged | {at: self._passed_over[key] for key, at in self._places.items()}


def _opened(payload: Buffer, position: int, header: BatchHeader, end: int, damaged: dict[int, str]) -> Columns | None:
    """Return the columns of a batch that begins below ``end``; one that cannot be decoded is noted."""
    if header.is_control or header.base_offset >= end:
        return None
    try:
        return decode_batch(payload, position, header, verify=False)
    except CorruptBatch as error:
        check_crc(payload, position, header)  # bytes that changed on the disk are read again, or repaired
        damaged[header.base_offset] = error.reason
        return None


def _values(columns: Columns) -> Sequence[bytes | None]:
    return columns.values or [None] * len(columns.timestamps)


def _decoded(key: bytes, value: bytes | None, rows: StoredRows) -> Row | None:
    """Return key and value of a row; None = it is no row, which is noted."""
    try:
        found = _decoder.decode(key), None if value is None else _decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is not UTF-8
        rows.pass_over(error)
        return None
    if isinstance(found[0], list) and found[0] and isinstance(found[1], list | None):
        return found
    rows.pass_over(TypeError("it is no list"))
    return None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
