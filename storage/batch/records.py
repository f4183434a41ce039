"""Record batches: encoding and decoding of bodies, columns (magic 77) or Kafka's own records (magic 2).

Producers encode and consumers decode; a broker reads headers (`header`), and opens a body only to clean a log or to
give it the codec of its topic. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from raylog.storage.batch.columns import Columns as Columns  # re-exported
from raylog.storage.batch.columns import Header as Header
from raylog.storage.batch.columns import OpenBatch as OpenBatch
from raylog.storage.batch.compression import (
    COMPRESSIONS as COMPRESSIONS,  # re-exported: part of this module's interface
)
from raylog.storage.batch.compression import Buffer, compress, decompress
from raylog.storage.batch.grids import Grid as Grid
from raylog.storage.batch.grids import Layout as Layout
from raylog.storage.batch.header import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    PLAIN,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    check_crc,
    header_before,
)
from raylog.storage.batch.header import BatchMeta as BatchMeta
from raylog.storage.errors import CorruptBatch, unsupported

BODY_BYTES_MAX = 128 << 20  # a body may not decompress to more than this
RECORDS_MAX = 1 << 22  # null columns take no bytes, so the record count of a batch needs its own bound
_encode_body = msgspec.msgpack.Encoder().encode


def assemble_batch(
    magic: int,
    body: bytes,
    timestamps: Sequence[int],
    meta: BatchMeta = PLAIN,
    compression: int = 0,
) -> bytes:
    """Put a header before a `body` that is encoded, and compressed by the codec `compression`."""
    header = header_before(
        body,
        magic=magic,
        count=len(timestamps),
        first_timestamp=timestamps[0],
        max_timestamp=max(timestamps),
        compression=compression,
        meta=meta,
    )
    return header + body


def check_columns(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None] | None,
    each: Sequence[object],
    headers: Sequence[Sequence[Header] | None] | None,
    compression: int,
) -> None:
    """ValueError or UnsupportedCompression when these columns cannot make a batch; `each` has an entry per record."""
    count = len(each)
    if count == 0:
        raise ValueError("A record batch holds at least one record.")
    if count > RECORDS_MAX:
        raise ValueError(f"A record batch holds at most {RECORDS_MAX} records, not {count}.")
    for name, column in (("keys", keys), ("values", values), ("headers", headers)):
        if column is not None and len(column) != count:
            raise ValueError(f"The column {name} holds {len(column)} entries, but there are {count} records.")
    if not 0 <= compression <= 4:
        raise unsupported(compression)


def encode_batch(
    keys: list[bytes | None] | None,
    values: list[bytes | None] | None,
    timestamps: list[int],
    headers: list[list[Header] | None] | None = None,
    meta: BatchMeta = PLAIN,
    *,
    compression: int = 0,
    level: int | None = None,
) -> bytes:
    """One batch of magic 77. Timestamps are milliseconds; the first is the base, the others are kept as deltas."""
    check_columns(keys, values, timestamps, headers, compression)
    base = timestamps[0]
    deltas = None if timestamps.count(base) == len(timestamps) else [moment - base for moment in timestamps]
    body = column_body(deltas, keys, values, headers, compression, level)
    return assemble_batch(MAGIC_COLUMNS, body, timestamps, meta, compression)


def encode_stamped(
    keys: list[bytes | None] | None,
    values: list[bytes | None],
    stamps: list[tuple[int, int]],
    headers: list[list[Header] | None] | None,
    meta: BatchMeta,
    *,
    compression: int,
) -> tuple[bytes, bytes]:
    """As `encode_batch`, for a producer: returns (header, body), so that a large body need not be copied.

    `stamps` are the timestamps, each with the index of the first record that has it.
    """
    count = len(values)
    check_columns(keys, None, values, headers, compression)
    base = stamps[0][1]
    deltas: list[int] | None = None
    if len(stamps) > 1:
        deltas = []
        for (first, timestamp), (end, _) in pairwise([*stamps, (count, 0)]):
            deltas += [timestamp - base] * (end - first)
    body = column_body(deltas, keys, values, headers, compression, None)
    header = header_before(
        body,
        magic=MAGIC_COLUMNS,
        count=count,
        first_timestamp=base,
        max_timestamp=max(timestamp for _, timestamp in stamps),
        compression=compression,
        meta=meta,
    )
    return header, body


def column_body(
    deltas: list[int] | None,
    keys: list[bytes | None] | None,
    values: list[bytes | None] | None,
    headers: list[list[Header] | None] | None,
    compression: int,
    level: int | None,
    offset_deltas: list[int] | None = None,
) -> bytes:
    # A column is scanned only if it begins with a null, so the common case costs one comparison.
    if keys is not None and keys[0] is None and keys.count(None) == len(keys):
        keys = None
    if values is not None and values[0] is None and values.count(None) == len(values):
        values = None
    if headers is not None and not any(headers):
        headers = None
    parts = (deltas, keys, values, headers) if offset_deltas is None else (deltas, keys, values, headers, offset_deltas)
    body = _encode_body(parts)
    return compress(compression, body, level) if compression else body


def encode_kafka_batch(
    keys: list[bytes | None] | None,
    values: list[bytes | None] | None,
    timestamps: list[int],
    headers: list[list[Header] | None] | None = None,
    meta: BatchMeta = PLAIN,
    *,
    compression: int = 0,
    level: int | None = None,
) -> bytes:
    """One batch of magic 2, byte for byte as a Kafka client makes it; the same arguments as `encode_batch`."""
    from raylog.storage.batch.kafka_rows import (
        encode_records,  # loaded on first use, so that importing this module stays cheap
    )

    check_columns(keys, values, timestamps, headers, compression)
    body = encode_records(keys, values, timestamps, headers)
    if compression:
        body = compress(compression, body, level)
    return assemble_batch(MAGIC_KAFKA, body, timestamps, meta, compression)


def body_of(buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = BODY_BYTES_MAX) -> Buffer:
    """The decompressed body of the batch at `position`, without a CRC check and without a copy.

    CorruptBatch; BodyTooLarge where decompression gives more than `max_bytes`, or than BODY_BYTES_MAX.
    """
    start, end = position + HEADER_BYTES, position + header.size
    if end > len(buffer):
        raise CorruptBatch(f"only {len(buffer) - position} of {header.size} bytes are here", position=position)
    body = memoryview(buffer)[start:end]
    if header.attributes & COMPRESSION_MASK:
        return decompress(header.attributes & COMPRESSION_MASK, body, max_bytes=min(max_bytes, BODY_BYTES_MAX))
    return body


def decode_batch(buffer: Buffer, position: int, header: BatchHeader, *, verify: bool = True) -> Columns:
    """Open the batch at `position`, with its parsed header; `verify` checks its CRC first. CorruptBatch."""
    if verify:
        check_crc(buffer, position, header)
    return open_batch(buffer, position, header).all()


def open_batch(buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = BODY_BYTES_MAX) -> OpenBatch:
    """As `decode_batch`, without a CRC check; each column is decoded on first use. Raises as `body_of`."""
    if header.record_count > RECORDS_MAX:
        raise CorruptBatch(f"{header.record_count} records in one batch are too many", position=position)
    body = body_of(buffer, position, header, max_bytes=max_bytes)
    if header.magic == MAGIC_KAFKA:
        from raylog.storage.batch.kafka_rows import decode_records  # only consumers of a Kafka client's batches need it

        return OpenBatch.of_columns(decode_records(body, header), len(body))
    append_ms = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
    is_plain = not header.attributes & COMPRESSION_MASK
    return OpenBatch(
        body,
        position,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        append_ms,
        (buffer, position + HEADER_BYTES, position + header.size) if is_plain else None,
    )
