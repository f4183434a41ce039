"""What a payload must be before a log takes it: whole batches, right CRCs, lengths within limits.

Called by `PartitionLog` for every append. It looks at headers and the CRC only; bodies are never opened.
"""

from __future__ import annotations

import google_crc32c

from .compression import Buffer
from .errors import CorruptBatch, DuplicateSequence, RecordTooLarge, UnsupportedCompression
from .producer_state import Duplicate, ProducerState
from .records import COMPRESSION_MASK, CRC_START, LENGTH_PREFIX_BYTES, parse_header
from .segment import PlacedHeader


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


def check_produced(batches: list[PlacedHeader], max_message_bytes: int) -> None:
    """Rules for batches that come from a producer, not from a leader."""
    for position, header in batches:
        if header.batch_length + LENGTH_PREFIX_BYTES > max_message_bytes:
            raise RecordTooLarge(header.size, max_message_bytes)
        if header.record_count != header.last_offset_delta + 1:
            raise CorruptBatch("its record count does not fit its last offset", position=position)
        if header.attributes & COMPRESSION_MASK > 4:
            raise UnsupportedCompression(header.attributes & COMPRESSION_MASK)
        if (
            header.producer_id >= 0
            and (header.base_sequence < 0 or header.producer_epoch < 0)
            and not header.is_control
        ):
            raise CorruptBatch("it has a producer id, but no sequence or no producer epoch", position=position)


def check_offsets(batches: list[PlacedHeader], expected: int) -> None:
    """Rule for batches that come from a leader: they go on exactly where the log ends."""
    for position, header in batches:
        if header.base_offset != expected:
            reason = f"it begins at offset {header.base_offset}, but the log goes on at {expected}"
            raise CorruptBatch(reason, position=position)
        expected += header.last_offset_delta + 1


def check_producers(batches: list[PlacedHeader], producers: ProducerState) -> Duplicate | None:
    """Sequence rules for all batches of a request together: None, or the place of the first copy of them all.

    Raises OutOfOrderSequence, InvalidProducerEpoch, and DuplicateSequence when only some are copies.
    """
    if len(batches) == 1:
        return producers.check(batches[0][1])
    ids = {header.producer_id for _, header in batches if header.producer_id >= 0}
    if not ids:
        return None
    staged = producers.staged(ids)  # a batch is judged as if those before it had been appended
    copies: list[Duplicate] = []
    for _, header in batches:
        copy = staged.check(header)
        if copy is not None:
            copies.append(copy)
        else:
            staged.apply(header)
    if not copies:
        return None
    if len(copies) != len(batches):
        header = batches[0][1]
        raise DuplicateSequence(header.producer_id, header.base_sequence)
    return Duplicate(copies[0].first_offset, copies[-1].end_offset)
