"""The live rows of a coordinator's log: the last one of each key, without tombstones.

The log is compacted: rows of different keys are independent, and only the last row of a key counts. So whole batches go
into one dictionary, by their encoded keys, and only what is left at the end is decoded. Most of a log that was not
cleaned yet is outdated, so this is several times faster than decoding row by row. Used by ``state_log.py``. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import check_crc, iter_headers
from raylog.storage.batch.records import decode_batch
from raylog.storage.errors import CorruptBatch

Row = tuple[list[object], list[object]]
"""Key and value of one live record."""

_decoder = msgspec.msgpack.Decoder()


class LiveRows:
    """Gathers batches in log order, then yields the rows that are live."""

    def __init__(self) -> None:
        """Start empty."""
        self._last: dict[bytes | None, bytes | None] = {}
        self._current: bytes = b""
        """Key of the row that was yielded last."""
        self.passed_over: dict[bytes, str] = {}
        """Encoded keys of live rows that cannot be read, with the reason."""
        self.damaged: dict[int, str] = {}
        """Base offsets of batches that cannot be decoded, with the reason."""
        self.rows_read = 0
        """How many rows were gathered, including outdated ones and tombstones."""

    def __len__(self) -> int:
        """Return the number of keys, including those of tombstones."""
        return len(self._last)

    def __iter__(self) -> Iterator[Row]:
        """Yield each live row; one that cannot be decoded as a row is skipped and noted."""
        for stored_key, stored_value in self._last.items():
            if stored_key is None or stored_value is None:
                continue
            self._current = stored_key
            try:
                key, value = _decoder.decode(stored_key), _decoder.decode(stored_value)
            except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is not UTF-8
                self.pass_over(error)
                continue
            if isinstance(key, list) and key and isinstance(value, list):
                yield key, value
            else:
                self.pass_over(TypeError("it is no list"))

    def pass_over(self, error: Exception) -> None:
        """Note that the row that was yielded last cannot be read, and why."""
        self.passed_over[self._current] = f"{type(error).__name__}: {error}"

    def gather(self, payload: Buffer, end: int) -> int | None:
        """Take the complete batches of a fetch that begin below ``end``; returns the offset behind them.

        None: there was no batch. A batch that cannot be decoded is noted and skipped if its checksum is right. Raises
        CorruptBatch if the checksum is wrong.
        """
        behind: int | None = None
        for position, header in iter_headers(payload):
            behind = header.next_offset
            if header.is_control or header.base_offset >= end:
                continue
            try:
                columns = decode_batch(payload, position, header, verify=False)
            except CorruptBatch as error:
                check_crc(payload, position, header)
                self.damaged[header.base_offset] = error.reason
                continue
            self.rows_read += header.record_count
            if columns.keys is not None:
                self._last.update(zip(columns.keys, columns.values or [None] * header.record_count, strict=True))
        return behind


def offsets_of(payload: Buffer, keys: Collection[bytes]) -> tuple[dict[bytes, int], int | None]:
    """Return the last offset of each of these keys in the complete batches of a fetch, and the offset behind them."""
    found: dict[bytes, int] = {}
    behind: int | None = None
    for position, header in iter_headers(payload):
        behind = header.next_offset
        try:
            columns = decode_batch(payload, position, header)
        except CorruptBatch:
            continue
        rows = zip(columns.offsets, columns.keys or (), strict=False)
        found |= {key: at for at, key in rows if key is not None and key in keys}
    return found, behind
