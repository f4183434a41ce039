"""The body of a magic 2 batch: Kafka's own records, with zigzag varints.

Called by `records` when a batch written by a Kafka client is opened, and by the wire gateway when it must write one.
Pure Python and pure values: such batches pass through a broker unopened, so this is not on the hot path.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from raylog.storage.batch.columns import HEADERS_MAX, Columns, Header
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import TIMESTAMP_TYPE_BIT, BatchHeader
from raylog.storage.errors import CorruptBatch

_VARINT_BYTES_MAX = 10
RECORD_BYTES_MIN = 7  # length, attributes, two deltas, key, value and number of headers, a byte each


def _put_varint(out: bytearray, value: int) -> None:
    number = (value << 1) ^ (value >> 63)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # the varint of -1
        return
    _put_varint(out, len(value))
    out += value


def encode_records(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None] | None,
    timestamps: Sequence[int],
    headers: Sequence[Sequence[Header] | None] | None,
    *,
    base_timestamp: int | None = None,
    offset_deltas: Sequence[int] | None = None,
) -> bytes:
    """The records in sequence; timestamps are milliseconds, the first is the base unless another is given.

    `offset_deltas`: those of the records of a cleaned batch; None = 0, 1, 2 and so on.
    """
    out, record = bytearray(), bytearray()
    base = timestamps[0] if base_timestamp is None else base_timestamp
    for index, moment in enumerate(timestamps):
        record.clear()
        record.append(0)  # record attributes: none are defined
        _put_varint(record, moment - base)
        _put_varint(record, index if offset_deltas is None else offset_deltas[index])
        _put_bytes(record, keys[index] if keys is not None else None)
        _put_bytes(record, values[index] if values is not None else None)
        pairs = (headers[index] if headers is not None else None) or ()
        _put_varint(record, len(pairs))
        for name, value in pairs:
            _put_bytes(record, name.encode())
            _put_bytes(record, value)
        _put_varint(out, len(record))
        out += record
    return bytes(out)


class _Reader:
    """A position in the body; every read is checked against the end."""

    __slots__ = ("data", "headers_left", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.headers_left = HEADERS_MAX

    def varint(self) -> int:
        number = shift = 0
        for _ in range(_VARINT_BYTES_MAX):
            if self.position >= len(self.data):
                raise CorruptBatch("its records are cut off")
            byte = self.data[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7
        raise CorruptBatch("a varint in its records is too long")

    def take(self, size: int) -> bytes:
        start = self.position
        if size < 0 or start + size > len(self.data):
            raise CorruptBatch("a length in its records is impossible")
        self.position = start + size
        return self.data[start : start + size]

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)

    def headers(self) -> list[Header] | None:
        return self.pairs(self.varint())

    def pairs(self, count: int) -> list[Header] | None:
        if not 0 <= count <= len(self.data) - self.position:
            raise CorruptBatch("a header count in its records is impossible")
        self.headers_left -= count
        if self.headers_left < 0:
            raise CorruptBatch(f"it has more than {HEADERS_MAX} headers")
        pairs: list[Header] = []
        for _ in range(count):
            try:
                name = self.take(self.varint()).decode()
            except UnicodeDecodeError as error:
                raise CorruptBatch("a header name in its records is not UTF-8") from error
            pairs.append((name, self.nullable()))
        return pairs or None


def decode_headers(data: bytes, position: int, count: int, end: int) -> list[Header] | None:
    """The `count` headers of one record, from byte `position` up to `end`; CorruptBatch when they do not fill it."""
    reader = _Reader(data)
    reader.position = position
    found = reader.pairs(count)
    if reader.position != end:
        raise CorruptBatch("a record in it does not end where its length says")
    return found


def decode_records(body: Buffer, header: BatchHeader) -> Columns:
    """The records of a magic 2 body as columns; CorruptBatch when they do not fill the body exactly."""
    reader = _Reader(bytes(body))
    if header.record_count * RECORD_BYTES_MIN > len(reader.data):
        raise CorruptBatch(f"{header.record_count} records cannot be in {len(reader.data)} bytes")
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[list[Header] | None] = []
    for _ in range(header.record_count):
        size = reader.varint()
        end = reader.position + size
        reader.take(1)
        timestamps.append(header.base_timestamp + reader.varint())
        offsets.append(header.base_offset + reader.varint())
        keys.append(reader.nullable())
        values.append(reader.nullable())
        headers.append(reader.headers())
        if reader.position != end:
            raise CorruptBatch("a record in it does not end where its length says")
    if reader.position != len(reader.data):
        raise CorruptBatch("bytes are left behind its last record")
    if offsets and (offsets[-1] > header.last_offset or any(b <= a for a, b in pairwise(offsets))):
        raise CorruptBatch("the offsets in it do not rise within its range")
    if header.record_count == header.last_offset_delta + 1:
        dense: range | list[int] = range(header.base_offset, header.next_offset)
    else:
        dense = offsets
    if header.attributes & TIMESTAMP_TYPE_BIT:  # log append time: the header's timestamp applies to all records
        timestamps = [header.max_timestamp] * len(timestamps)
    return Columns(
        dense,
        timestamps,
        keys if any(key is not None for key in keys) else None,
        values if any(value is not None for value in values) else None,
        headers if any(headers) else None,
    )
