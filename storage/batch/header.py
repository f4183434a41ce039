"""The header of a record batch: 61 bytes, big-endian, laid out as Kafka's v2 batch header.

    offset  bytes  field                   notes
    0       8      base_offset             stamped by the leader
    8       4      batch_length            bytes after this field
    12      4      partition_leader_epoch  stamped by the leader
    16      1      magic                   77: columns; 2: Kafka's records
    17      4      crc                     CRC-32C of everything after it
    21      2      attributes              bits 0-2 codec, 3 time type, 4 transactional, 5 control, 6 delete horizon
    23      4      last_offset_delta       offset of the last record, counted from base_offset
    27      8      base_timestamp          milliseconds; that of the first record, or the delete horizon (KIP-534)
    35      8      max_timestamp           milliseconds
    43      8      producer_id             -1: none
    51      2      producer_epoch          -1: none
    53      4      base_sequence           -1: none
    57      4      record_count

The CRC covers everything after itself. Base offset, batch length, leader epoch and magic lie before it, so that a
leader stamps them in place; producer id, epoch and sequence lie after it and are set when the batch is encoded. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from raylog.storage.batch.compression import Buffer
from raylog.storage.errors import CorruptBatch

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12  # base offset and batch length, which the batch length does not count
CRC_START = 21  # the first byte under the CRC
_TRANSACTIONAL_AT = 22  # the low byte of the attributes
_PREFIX = struct.Struct(">qiibI")  # the part outside the CRC, and the CRC
_CHECKED = struct.Struct(">hiqqqhii")  # the part of the header under the CRC
_stamp_start = struct.Struct(">qii").pack_into  # base offset, batch length, leader epoch
_STAMP_OFFSET = struct.Struct(">q")
_STAMP_EPOCH = struct.Struct(">i")
_length_at = struct.Struct(">i").unpack_from
_PRODUCER_ID_AT = 43
_id_at = struct.Struct(">q").unpack_from

MAGIC_COLUMNS = 77
MAGIC_KAFKA = 2
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""Set on a cleaned batch with tombstones, and on a marker: the base timestamp is then the time from which on they may
be removed, the delete horizon (KIP-534)."""
SEQUENCE_MAX = 2**31 - 1
LASTING_PRODUCERS = 1 << 62
"""Producer ids from here on are never forgotten by partitions; those that the controller gives out are below."""
BATCH_BYTES_MAX = 2**31 - 1


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
        """The first offset after this batch."""
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
        """Whether this is a control batch, which consumers skip."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record (-1 without sequences); after 2**31 - 1 comes 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


class BatchMeta(NamedTuple):
    """Header fields that do not follow from a batch's records, for encoding it."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    base_offset: int = 0
    partition_leader_epoch: int = -1
    attributes: int = 0
    """Without the codec's number."""


PLAIN = BatchMeta()
"""The fields of a batch without a producer id, before a leader stamps it."""
_new = tuple.__new__
"""Makes a header of all fields without the call overhead of `_make` and `_replace`."""
_unpack_header = HEADER.unpack_from


_length_and_attributes = struct.Struct(">8xi9xh").unpack_from
_UNUSUAL_BITS = TRANSACTIONAL_BIT | COMPRESSION_MASK


def is_plain(payload: Buffer) -> bool:
    """Whether a payload is one whole batch, without a codec and of no transaction; nearly all that are produced are."""
    size = len(payload)
    if size <= HEADER_BYTES:
        return False
    length, attributes = _length_and_attributes(payload)
    return not attributes & _UNUSUAL_BITS and length == size - LENGTH_PREFIX_BYTES


def is_transactional(payload: Buffer) -> bool:
    """Whether a batch of the payload belongs to a transaction; read up to the first header that is malformed.

    That suffices: a leader refuses a payload with a malformed header as a whole.
    """
    position, end = 0, len(payload)
    if end > HEADER_BYTES and _length_at(payload, 8)[0] == end - LENGTH_PREFIX_BYTES:  # one batch: nearly always
        return bool(payload[_TRANSACTIONAL_AT] & TRANSACTIONAL_BIT)
    try:
        while position < end:
            header = parse_header(payload, position)
            if header.attributes & TRANSACTIONAL_BIT:
                return True
            position += header.size
    except CorruptBatch:
        return False
    return False


class Claims(NamedTuple):
    """What the batches of a payload claim for which a writer needs more than the permission to write."""

    is_transactional: bool = False
    """One belongs to a transaction."""
    is_lasting: bool = False
    """One has a producer id that its partition never forgets."""


NO_CLAIMS = Claims()


def claims_of(payload: Buffer) -> Claims:
    """What a payload claims; read up to the first header that is malformed, as `is_transactional`."""
    position, end = 0, len(payload)
    if end > HEADER_BYTES and _length_at(payload, 8)[0] == end - LENGTH_PREFIX_BYTES:
        is_lasting = _id_at(payload, _PRODUCER_ID_AT)[0] >= LASTING_PRODUCERS
        is_plain = not is_lasting and not payload[_TRANSACTIONAL_AT] & TRANSACTIONAL_BIT
        return NO_CLAIMS if is_plain else Claims(is_transactional(payload), is_lasting)
    is_lasting = False
    try:
        while position < end:
            header = parse_header(payload, position)
            is_lasting |= header.producer_id >= LASTING_PRODUCERS
            position += header.size
    except CorruptBatch:
        pass
    return Claims(is_transactional(payload), is_lasting)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position` and check all that needs no body; CorruptBatch for a malformed one.

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
    """Each whole batch of `buffer` as (position, header); stops at a cut-off tail. CorruptBatch if malformed."""
    position, end = 0, len(buffer)
    while position + HEADER_BYTES <= end:
        header = parse_header(buffer, position)
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def end_offset(buffer: Buffer, otherwise: int) -> int:
    """The offset after the last whole batch of `buffer`; `otherwise` if there is none. CorruptBatch if malformed."""
    position, size = 0, len(buffer)
    while position + HEADER_BYTES <= size:
        header = parse_header(buffer, position)
        position += header.batch_length + LENGTH_PREFIX_BYTES
        if position <= size:
            otherwise = header.base_offset + header.last_offset_delta + 1
    return otherwise


def end_of_checked(buffer: Buffer, otherwise: int) -> int:
    """As `end_offset`, for whole batches that were checked before: of all but the last only the length is read."""
    position, last, size = 0, -1, len(buffer)
    while position + HEADER_BYTES <= size:
        last = position
        length: int = _length_at(buffer, position + 8)[0]
        if length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
            raise CorruptBatch(f"a batch length of {length} bytes is impossible", position=position)
        position += length + LENGTH_PREFIX_BYTES
    return otherwise if last < 0 else parse_header(buffer, last).next_offset


def _checked_bytes(buffer: Buffer, position: int, header: BatchHeader) -> bytes:
    """The bytes under the CRC; one copy, which the CRC library needs because it takes `bytes` only."""
    start, end = position + CRC_START, position + header.size
    if end > len(buffer):
        raise CorruptBatch(f"only {len(buffer) - position} of {header.size} bytes are here", position=position)
    return buffer[start:end] if isinstance(buffer, bytes) else bytes(memoryview(buffer)[start:end])


def out_of_place(header: BatchHeader, offset: int) -> CorruptBatch:
    """The error for a batch that does not hold `offset`, at which the read has to continue.

    A log has no gaps, and no checksum covers a batch's base offset: a flipped bit in it would pass for other offsets,
    or for the end of the read. The first batch of a read may begin below the offset.
    """
    return CorruptBatch(f"it holds offsets {header.base_offset} to {header.last_offset}, and {offset} comes next")


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
    """Stamp consecutive batches from `offset` on, as a leader of this epoch; returns their headers, as stamped.

    `batches` are their positions in `view` and their headers before.
    """
    headers = []
    for position, header in batches:
        _stamp_start(view, position, offset, header.batch_length, leader_epoch)
        headers.append(_new(BatchHeader, (offset, header.batch_length, leader_epoch, *header[3:])))
        offset += header.last_offset_delta + 1
    return headers


def with_body(header: BatchHeader, body: Buffer) -> bytes:
    """The encoded header for another `body`, with the length and the CRC that belong to it."""
    checked = _CHECKED.pack(*header[5:])
    crc = google_crc32c.extend(google_crc32c.value(checked), bytes(body))
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    return _PREFIX.pack(header.base_offset, length, header.partition_leader_epoch, header.magic, crc) + checked


def header_before(
    body: bytes,
    *,
    magic: int,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    compression: int,
    meta: BatchMeta,
) -> bytes:
    """The encoded header for a `body` that is encoded, and compressed by the codec `compression`."""
    producer_id, producer_epoch, base_sequence, base_offset, leader_epoch, attributes = meta
    attributes = attributes & ~COMPRESSION_MASK | compression
    checked = _CHECKED.pack(
        attributes, count - 1, first_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count
    )
    crc = google_crc32c.extend(google_crc32c.value(checked), body)
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    return _PREFIX.pack(base_offset, length, leader_epoch, magic, crc) + checked
