"""Validation of a payload before an append: whole batches, right CRCs, lengths within limits.

Called by `PartitionLog` for every append. Reads headers, checks CRCs, and checks the structure of bodies. It opens
compressed bodies up to a bound, and all bodies if the topic is compacted or has a codec of its own.
"""

from __future__ import annotations

from pathlib import Path

import google_crc32c

from raylog.base.errors import (
    DuplicateSequence,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
)
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.grids import ARRAY_16, FOUR_COLUMNS, NIL
from raylog.storage.batch.header import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_KAFKA,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
)
from raylog.storage.batch.records import BODY_BYTES_MAX, open_batch
from raylog.storage.batch.rewriting import Rewriting, Rewritten, rewritten
from raylog.storage.batch.structure import (
    ONE_VALUE,
    STEPPED_BYTES_MIN,
    WALKED_BYTES_MAX,
    check_structure,
    columns_head,
    one_value_head,
    open_to_check,
)
from raylog.storage.errors import BodyTooLarge, CorruptBatch, refused, unsupported
from raylog.storage.log.config import LogConfig
from raylog.storage.log.producer_state import Duplicate, ProducerState
from raylog.storage.segments.segment import PlacedHeader

COMPRESSED_RECORDS_MAX = 1 << 20
"""Most records of a compressed batch, unless max.message.bytes is a larger number."""
AT_ONCE_BYTES = 64 << 10
"""Decompressed bytes of a request that are opened on the event loop: some ten microseconds."""
DECOMPRESSED_BYTES_MAX = 64 << 20
"""Most bytes of the bodies of one request that a leader has to decompress, as no other request is served meanwhile;
unless max.message.bytes is larger."""
_REFUSED_BITS = CONTROL_BIT | TIMESTAMP_TYPE_BIT
_BYTES_COUNTED_MIN = 8
_ONE_VALUE_BYTES = len(ONE_VALUE) + 2
"""All of such a body but the value: its length is in one byte, and there are no headers."""
_HEADER_IN_LENGTH = HEADER_BYTES - LENGTH_PREFIX_BYTES
_NO_TIMESTAMP = -1


def inspect(payload: Buffer) -> list[PlacedHeader]:
    """The batches of `payload`, at least one, as (position, header); CorruptBatch unless all are whole and right."""
    batches: list[PlacedHeader] = []
    position, end = 0, len(payload)
    view = memoryview(payload)
    while position < end:
        header = parse_header(payload, position)
        stop = position + header.batch_length + LENGTH_PREFIX_BYTES
        if stop > end:
            raise CorruptBatch(f"only {end - position} of {header.size} bytes are here", position=position)
        start = position + CRC_START
        if google_crc32c.value(bytes(view[start:stop])) != header.crc:
            raise CorruptBatch("its CRC is wrong", position=position)
        batches.append((position, header))
        position = stop
    if not batches:
        raise CorruptBatch("the payload is empty")
    return batches


def check_produced(batches: list[PlacedHeader], config: LogConfig, now_ms: int) -> None:
    """Rules for batches from a producer, not from a leader; read from headers alone.

    A batch is as large as its header and body together, as Kafka counts it. `now_ms` is the leader's wall clock. Raises
    RecordTooLarge, InvalidRecord, InvalidTimestamp, UnsupportedCompression, CorruptBatch.
    """
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    for position, header in batches:
        size = header.batch_length + LENGTH_PREFIX_BYTES
        if size > config.max_message_bytes:
            raise _too_large(size, config)
        attributes, count, newest, first = (
            header.attributes,
            header.record_count,
            header.max_timestamp,
            header.base_timestamp,
        )
        if attributes & _REFUSED_BITS:
            raise _refused_bit(attributes)
        if count != header.last_offset_delta + 1:
            raise refused(f"it has {count} records, and its last one is number {header.last_offset_delta}")
        if count > size - HEADER_BYTES and count > _records_max(header, config):
            raise refused(f"{count} records cannot be in a batch of {size} bytes; send smaller batches")
        if attributes & COMPRESSION_MASK > 4:
            raise unsupported(attributes & COMPRESSION_MASK)
        if newest > latest or first > latest:
            after = config.message_timestamp_after_max_ms
            raise _far_from_now(max(newest, first), now_ms, "message.timestamp.after.max.ms", after)
        if (first < earliest or newest < earliest) and newest != _NO_TIMESTAMP:
            before = config.message_timestamp_before_max_ms
            raise _far_from_now(min(newest, first), now_ms, "message.timestamp.before.max.ms", before)
        if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
            raise CorruptBatch("it has a producer id, but no sequence or no producer epoch", position=position)
        if attributes & TRANSACTIONAL_BIT and header.producer_id < 0:
            raise refused("it belongs to a transaction, and has no producer id")


def _too_large(size: int, config: LogConfig) -> RecordTooLarge:
    return RecordTooLarge(
        f"Record batch of {size} bytes exceeds max.message.bytes={config.max_message_bytes}. "
        "Send smaller batches or raise the limit."
    )


def _refused_bit(attributes: int) -> InvalidRecord | InvalidTimestamp:
    if attributes & CONTROL_BIT:
        return refused("clients do not write control batches")
    return InvalidTimestamp("A producer must not set the timestamp type LogAppendTime; send CreateTime.")


def _far_from_now(timestamp_ms: int, now_ms: int, key: str, limit_ms: int) -> InvalidTimestamp:
    side = "ahead of" if timestamp_ms > now_ms else "behind"
    return InvalidTimestamp(
        f"Timestamp {timestamp_ms} is {abs(timestamp_ms - now_ms)} ms {side} the broker's clock, {key}={limit_ms}. "
        "Timestamps are milliseconds since 1970: check the unit and the clocks."
    )


def _records_max(header: BatchHeader, config: LogConfig) -> int:
    """The most records that a batch with more records than bytes can hold: a consumer makes an object of each.

    A column whose values are all null takes no bytes, but a producer counts at least 12 bytes per record against the
    size of its batch. Compressed data may expand far beyond its size.
    """
    if header.attributes & COMPRESSION_MASK:
        return max(COMPRESSED_RECORDS_MAX, config.max_message_bytes)
    if header.magic == MAGIC_KAFKA:
        return 0  # each takes several bytes
    return config.max_message_bytes // _BYTES_COUNTED_MIN


def rewrite(
    payload: Buffer, batches: list[PlacedHeader], config: LogConfig, now_ms: int, rules: Rewriting
) -> tuple[Rewritten, list[PlacedHeader]]:
    """Change checked batches by these rules; a changed batch must not be larger than max.message.bytes, either.

    The payload of the result is writable. Raises RecordTooLarge, UnsupportedCompression, InvalidRecord.
    """
    room = max(DECOMPRESSED_BYTES_MAX, config.max_message_bytes)
    try:
        changed, batches = rewritten(payload, batches, rules, now_ms, max_bytes=room)
    except CorruptBatch as error:
        raise unreadable(error) from error
    for _, header in batches:
        if header.size > config.max_message_bytes:
            raise _too_large(header.size, config)
    return changed, batches


def check_bodies(payload: Buffer, batches: list[PlacedHeader], config: LogConfig, folder: Path) -> None:
    """Rules for batches from a producer: their bodies look as if readers could open them; in a compacted topic, keys.

    Raises InvalidRecord, and RecordTooLarge for one that is larger than any reader accepts when it is decompressed.
    """
    room = AT_ONCE_BYTES
    for position, header in batches:
        codec, rows, start = header.attributes & COMPRESSION_MASK, header.record_count, position + HEADER_BYTES
        size = header.batch_length - _HEADER_IN_LENGTH
        # What `check_structure` would find of the most frequent bodies, at once and without a call: one record with a
        # short value and nothing else; many values without keys, of one time; and many records of several times.
        if rows == 1 and not codec and _ONE_VALUE_BYTES <= size < _ONE_VALUE_BYTES + 256:
            head = one_value_head(payload, start)
            if head == (ONE_VALUE, size - _ONE_VALUE_BYTES) and payload[start + size - 1] == NIL:
                continue
        elif WALKED_BYTES_MAX < size <= BODY_BYTES_MAX and not codec and header.magic != MAGIC_KAFKA:
            first, second, third, fourth, count = columns_head(payload, start)
            if first == FOUR_COLUMNS and (
                (fourth == ARRAY_16 and count == rows and second == third == NIL)
                or (second == ARRAY_16 and third << 8 | fourth == rows and size < STEPPED_BYTES_MIN)
            ):
                continue
        try:
            check_structure(payload, position, header)
            if header.attributes & COMPRESSION_MASK:
                room -= open_to_check(payload, position, header, room)
        except CorruptBatch as error:
            raise unreadable(error) from error
    if config.compaction is not None:
        check_keys(payload, batches, folder.name, config.max_message_bytes)


def unreadable(error: CorruptBatch) -> InvalidRecord | RecordTooLarge:
    """The refusal of a body that is as its producer made it: the checksum is right, and another try is no use."""
    if isinstance(error, BodyTooLarge):
        return RecordTooLarge(f"A record batch is refused: {error.reason}. Send smaller records, or fewer in a batch.")
    return refused(f"no reader can open it, as {error.reason}")


def check_keys(payload: Buffer, batches: list[PlacedHeader], partition: str, max_message_bytes: int) -> None:
    """Rule of compacted topics: each record has a key. Opens batches.

    Raises InvalidRecord, and RecordTooLarge where they take more than DECOMPRESSED_BYTES_MAX together.
    """
    room = max(DECOMPRESSED_BYTES_MAX, max_message_bytes)
    for position, header in batches:
        try:
            opened = open_batch(payload, position, header, max_bytes=room)
            keys = opened.column("keys")
        except CorruptBatch as error:
            raise unreadable(error) from error
        room -= opened.plain_bytes
        if keys is None or None in keys:
            raise refused(
                f"{partition} is compacted, so each record needs a key, and one has none. Nothing of the batch is "
                "stored; give each record a key, or set cleanup.policy=delete for the topic"
            )


def check_offsets(batches: list[PlacedHeader], expected: int) -> None:
    """Rule for batches from a leader: they continue exactly where the log ends."""
    for position, header in batches:
        if header.base_offset != expected:
            reason = f"it begins at offset {header.base_offset}, but the log goes on at {expected}"
            raise CorruptBatch(reason, position=position)
        expected += header.last_offset_delta + 1


def check_producers(batches: list[PlacedHeader], producers: ProducerState) -> Duplicate | None:
    """Sequence rules for all batches of a request together: None, or the place of the first copy of them all.

    Raises OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, ConcurrentTransactions, and DuplicateSequence when
    only some are copies.
    """
    if len(batches) == 1:
        return producers.check(batches[0][1])
    ids = {header.producer_id for _, header in batches if header.producer_id >= 0}
    if not ids:
        return None
    staged = producers.staged(ids)  # a batch is checked as if those before it had been appended
    copies: list[Duplicate] = []
    for _, header in batches:
        copy = staged.check(header)
        if copy is not None:
            copies.append(copy)
        else:
            staged.apply(header, 0, None)  # a copy, for sequences alone
    if not copies:
        return None
    if len(copies) != len(batches):
        header = batches[0][1]
        raise DuplicateSequence(
            f"Producer {header.producer_id} sent sequence {header.base_sequence} again together with new batches. "
            "Send the new ones alone."
        )
    return Duplicate(copies[0].first_offset, copies[-1].end_offset)
