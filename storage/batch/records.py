"""Record batches: the 61-byte header of Kafka's v2 batch, and the column body (magic 77).

Producers encode here and consumers decode; the broker only reads headers, checks the CRC and stamps offsets. Bodies of
magic 2 (Kafka's own records) are handed to `kafka_records`. Nothing here touches files, clocks or the network.

The CRC covers everything behind itself, so base offset, batch length, leader epoch and magic lie outside: a leader may
stamp them in place. Producer id, epoch and sequence lie inside: a producer sets them when it encodes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import google_crc32c
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
from raylog.storage.errors import CorruptBatch, unsupported

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12  # base offset and batch length, which the batch length does not count
CRC_START = 21  # the first byte under the CRC
_PREFIX = struct.Struct(">qiibI")  # the part outside the CRC, and the CRC
_CHECKED = struct.Struct(">hiqqqhii")  # the part of the header under the CRC
_stamp_start = struct.Struct(">qii").pack_into  # base offset, batch length, leader epoch
_STAMP_OFFSET = struct.Struct(">q")
_STAMP_EPOCH = struct.Struct(">i")

MAGIC_COLUMNS = 77
MAGIC_KAFKA = 2
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
SEQUENCE_MAX = 2**31 - 1
BATCH_BYTES_MAX = 2**31 - 1
BODY_BYTES_MAX = 128 << 20  # a body may not decompress to more than this
RECORDS_MAX = 1 << 22  # null columns cost no bytes, so the record count of a batch needs a bound of its own


class BatchHeader(NamedTuple):
    """The 13 fields of a batch header, in their order on disk."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The offset of the last record (or of the last one there was, in a cleaned batch)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset behind this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """The bytes of the whole batch, header and length prefix included."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def compression(self) -> int:
        """The codec number, a value of COMPRESSIONS."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether this is a marker of the broker's own, which consumers skip."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record (-1 without sequences); after 2**31 - 1 comes 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


_encode_body = msgspec.msgpack.Encoder().encode
_new = tuple.__new__
"""Makes a header of as many fields as it has without the call that `_make` and `_replace` are."""
_unpack_header = HEADER.unpack_from


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position` and check what can be checked without the body; CorruptBatch if it is not one.

    The batch itself may be cut off by the end of `buffer`; compare `header.size`.
    """
    try:
        header = _new(BatchHeader, _unpack_header(buffer, position))
    except struct.error as error:
        raise CorruptBatch("fewer bytes than a batch header are left", position=position) from error
    if header.magic != MAGIC_COLUMNS and header.magic != MAGIC_KAFKA:
        raise CorruptBatch(f"magic {header.magic} is neither {MAGIC_COLUMNS} nor {MAGIC_KAFKA}", position=position)
    if not HEADER_BYTES - LENGTH_PREFIX_BYTES <= header.batch_length <= BATCH_BYTES_MAX - LENGTH_PREFIX_BYTES:
        raise CorruptBatch(f"a batch length of {header.batch_length} bytes is impossible", position=position)
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptBatch("an offset or the record count is negative", position=position)
    return header


def iter_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch of `buffer` as (position, header); stops at a cut-off tail, raises CorruptBatch at nonsense."""
    position, end = 0, len(buffer)
    while position + HEADER_BYTES <= end:
        header = parse_header(buffer, position)
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def end_offset(buffer: Buffer, otherwise: int) -> int:
    """The offset behind the last whole batch of `buffer`; `otherwise` if there is none. CorruptBatch at nonsense."""
    position, size = 0, len(buffer)
    while position + HEADER_BYTES <= size:
        header = parse_header(buffer, position)
        position += header.batch_length + LENGTH_PREFIX_BYTES
        if position <= size:
            otherwise = header.base_offset + header.last_offset_delta + 1
    return otherwise


def _checked_bytes(buffer: Buffer, position: int, header: BatchHeader) -> bytes:
    """The bytes under the CRC; one copy, which the CRC library needs because it takes `bytes` only."""
    start, end = position + CRC_START, position + header.size
    if end > len(buffer):
        raise CorruptBatch(f"only {len(buffer) - position} of {header.size} bytes are here", position=position)
    return buffer[start:end] if isinstance(buffer, bytes) else bytes(memoryview(buffer)[start:end])


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """CorruptBatch unless the batch at `position` is whole and its CRC-32C is right."""
    found = google_crc32c.value(_checked_bytes(buffer, position, header))
    if found != header.crc:
        raise CorruptBatch(f"its CRC is {found:#010x}, the header says {header.crc:#010x}", position=position)


def stamp(batch: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into the header at `position`; both lie outside the CRC."""
    _STAMP_OFFSET.pack_into(batch, position, base_offset)
    _STAMP_EPOCH.pack_into(batch, position + LENGTH_PREFIX_BYTES, leader_epoch)


def stamp_all(
    view: memoryview, batches: Sequence[tuple[int, BatchHeader]], offset: int, leader_epoch: int
) -> list[BatchHeader]:
    """Stamp batches one behind the other from `offset` on, as a leader of this epoch; their headers, as they are then.

    `batches` are their positions in `view` and the headers they came with.
    """
    headers = []
    for position, header in batches:
        _stamp_start(view, position, offset, header.batch_length, leader_epoch)
        headers.append(_new(BatchHeader, (offset, header.batch_length, leader_epoch, *header[3:])))
        offset += header.last_offset_delta + 1
    return headers


def header_before(
    body: bytes,
    *,
    magic: int,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: int,
    partition_leader_epoch: int,
    attributes: int,
) -> bytes:
    """The header that belongs before an encoded (and compressed) body. `attributes` already names the codec."""
    checked = _CHECKED.pack(
        attributes,
        count - 1,
        first_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    crc = google_crc32c.extend(google_crc32c.value(checked), body)
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    return _PREFIX.pack(base_offset, length, partition_leader_epoch, magic, crc) + checked


def assemble_batch(
    magic: int,
    body: bytes,
    timestamps: Sequence[int],
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: int,
    partition_leader_epoch: int,
    attributes: int,
) -> bytes:
    """Put a header before an encoded (and compressed) body. `attributes` already names the codec."""
    header = header_before(
        body,
        magic=magic,
        count=len(timestamps),
        first_timestamp=timestamps[0],
        max_timestamp=max(timestamps),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        attributes=attributes,
    )
    return header + body


def check_columns(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None] | None,
    each: Sequence[object],
    headers: Sequence[Sequence[Header] | None] | None,
    compression: int,
) -> None:
    """ValueError or UnsupportedCompression when these columns cannot make a batch; `each` has an entry a record."""
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
    *,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    attributes: int = 0,
    level: int | None = None,
) -> bytes:
    """One batch of magic 77. Timestamps are milliseconds; the first is the base, the others are kept as deltas."""
    check_columns(keys, values, timestamps, headers, compression)
    base = timestamps[0]
    deltas = None if timestamps.count(base) == len(timestamps) else [moment - base for moment in timestamps]
    body = _column_body(deltas, keys, values, headers, compression, level)
    return assemble_batch(
        MAGIC_COLUMNS,
        body,
        timestamps,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        attributes=attributes & ~COMPRESSION_MASK | compression,
    )


def encode_stamped(
    keys: list[bytes | None] | None,
    values: list[bytes | None],
    stamps: list[tuple[int, int]],
    headers: list[list[Header] | None] | None,
    *,
    compression: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> tuple[bytes, bytes]:
    """What a producer sends: the same as `encode_batch`, as header and body, so that a large body need not be copied.

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
    body = _column_body(deltas, keys, values, headers, compression, None)
    header = header_before(
        body,
        magic=MAGIC_COLUMNS,
        count=count,
        first_timestamp=base,
        max_timestamp=max(timestamp for _, timestamp in stamps),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=0,
        partition_leader_epoch=-1,
        attributes=compression,
    )
    return header, body


def _column_body(
    deltas: list[int] | None,
    keys: list[bytes | None] | None,
    values: list[bytes | None] | None,
    headers: list[list[Header] | None] | None,
    compression: int,
    level: int | None,
) -> bytes:
    # A column is looked through only if it begins with a null, so the common case costs one comparison.
    if keys is not None and keys[0] is None and keys.count(None) == len(keys):
        keys = None
    if values is not None and values[0] is None and values.count(None) == len(values):
        values = None
    if headers is not None and not any(headers):
        headers = None
    body = _encode_body((deltas, keys, values, headers))
    return compress(compression, body, level) if compression else body


def encode_kafka_batch(
    keys: list[bytes | None] | None,
    values: list[bytes | None] | None,
    timestamps: list[int],
    headers: list[list[Header] | None] | None = None,
    *,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    attributes: int = 0,
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
    return assemble_batch(
        MAGIC_KAFKA,
        body,
        timestamps,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        attributes=attributes & ~COMPRESSION_MASK | compression,
    )


def body_of(buffer: Buffer, position: int, header: BatchHeader) -> Buffer:
    """The decompressed body of the batch at `position`, without a look at its CRC and without a copy. CorruptBatch."""
    start, end = position + HEADER_BYTES, position + header.size
    if end > len(buffer):
        raise CorruptBatch(f"only {len(buffer) - position} of {header.size} bytes are here", position=position)
    body = memoryview(buffer)[start:end]
    if header.attributes & COMPRESSION_MASK:
        return decompress(header.attributes & COMPRESSION_MASK, body, max_bytes=BODY_BYTES_MAX)
    return body


def decode_batch(buffer: Buffer, position: int, header: BatchHeader, *, verify: bool = True) -> Columns:
    """Open the batch at `position`, whose header was parsed before; `verify` checks its CRC first. CorruptBatch."""
    if verify:
        check_crc(buffer, position, header)
    return open_batch(buffer, position, header).all()


def open_batch(buffer: Buffer, position: int, header: BatchHeader) -> OpenBatch:
    """The same without its CRC, and each column decoded when it is asked for. CorruptBatch."""
    if header.record_count > RECORDS_MAX:
        raise CorruptBatch(f"{header.record_count} records in one batch are too many", position=position)
    body = body_of(buffer, position, header)
    if header.magic == MAGIC_KAFKA:
        from raylog.storage.batch.kafka_rows import decode_records  # only consumers of a Kafka client's batches need it

        return OpenBatch.of_columns(decode_records(body, header))
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
