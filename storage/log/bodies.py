"""Opens the bodies of producers' batches before an append: one that is not what its header says is refused.

Small bodies are opened where they are appended. Those that take longer (`takes_long`) are opened in a thread first
(`open_bodies`), by the shell of a leader, and then appended as opened (docs/adr/0113). The decompressed bytes of a
request are bounded; of bodies beyond the bound, the headers are trusted, unless the topic needs them opened. Pure.
"""

from __future__ import annotations

from raylog.storage.batch.compression import Buffer, plain_bound
from raylog.storage.batch.header import COMPRESSION_MASK, HEADER_BYTES, parse_header
from raylog.storage.batch.rewriting import Rewriting
from raylog.storage.batch.structure import check_structure, open_to_check
from raylog.storage.errors import CorruptBatch
from raylog.storage.log.config import LogConfig
from raylog.storage.log.validation import (
    AT_ONCE_BYTES,
    DECOMPRESSED_BYTES_MAX,
    check_keys,
    inspect,
    rewrite,
    unreadable,
)


def takes_long(payload: Buffer, config: LogConfig) -> bool:
    """Whether to open, check or compress the bodies of a request would hold up others."""
    codec = None if config.rewriting is None else config.rewriting.codec
    position, room = 0, AT_ONCE_BYTES
    while position < len(payload) and room >= 0:
        try:
            header = parse_header(payload, position)
        except CorruptBatch:
            return False  # which the append finds, too
        own = header.attributes & COMPRESSION_MASK
        if own:
            body = memoryview(payload)[position + HEADER_BYTES : position + header.size]
            room -= plain_bound(own, body)
        elif codec:
            room -= header.size
        position += header.size
    return room < 0


def open_bodies(payload: Buffer, config: LogConfig, partition: str) -> Buffer:
    """Open the bodies of a request, up to the bound; returns the payload to append in its place.

    That is the given one, or its batches in the topic's codec. Raises InvalidRecord, RecordTooLarge, CorruptBatch.
    """
    batches = inspect(payload)
    room = max(DECOMPRESSED_BYTES_MAX, config.max_message_bytes)
    for position, header in batches:
        try:
            check_structure(payload, position, header)
            room -= open_to_check(payload, position, header, room)
        except CorruptBatch as error:
            raise unreadable(error) from error
    if config.compaction is not None:
        check_keys(payload, batches, partition, config.max_message_bytes)
    rules = config.rewriting
    if rules is None or rules.codec is None or any(header.size > config.max_message_bytes for _, header in batches):
        return payload
    changed, _ = rewrite(payload, batches, config, 0, Rewriting(rules.codec))
    return changed.payload
