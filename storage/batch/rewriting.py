"""Batches as a leader changes them before it appends: another codec, or the time of the append on every record.

Most topics need neither, and then a batch is stored with the bytes that its producer sent (docs/adr/0048). Called by
the log for an append of a leader; a follower gets the changed bytes. Control batches stay as they are. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raylog.storage.batch.compression import Buffer, compress
from raylog.storage.batch.header import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    parse_header,
    with_body,
)
from raylog.storage.batch.records import body_of

NO_APPEND_TIME: Final = -1
"""Records carry the times that their producer gave them."""


class Rewriting(NamedTuple):
    """What a leader changes in the batches of a topic."""

    codec: int | None = None
    """Number of the codec that every batch gets, a value of COMPRESSIONS; None = it keeps its own."""
    append_time: bool = False
    """Whether all records get the time of the append (message.timestamp.type=LogAppendTime)."""


class Rewritten(NamedTuple):
    """The bytes that a log has in place of a producer's, and the time that its records got."""

    payload: Buffer
    append_ms: int = NO_APPEND_TIME


def rewritten(
    payload: Buffer, batches: list[tuple[int, BatchHeader]], rules: Rewriting, now_ms: int, *, max_bytes: int
) -> tuple[Rewritten, list[tuple[int, BatchHeader]]]:
    """Change checked batches, given as (position, header), by these rules; returns the changed ones in the same form.

    The payload of the result is writable. It is the given one, changed in place, if that is writable and no batch needs
    another codec. Raises UnsupportedCompression if this machine does not have the codec, CorruptBatch for a body that
    cannot be decompressed, BodyTooLarge if the bodies have more than `max_bytes` together; nothing is changed then.
    """
    if rules.codec is not None and any(_differs(header, rules.codec) for _, header in batches):
        payload, batches = _recompressed(payload, batches, rules.codec, max_bytes)
    view = memoryview(payload)
    if view.readonly:
        view = memoryview(bytearray(payload))
    if not rules.append_time:
        return Rewritten(view), batches
    return Rewritten(view, now_ms), [(at, _stamped(view, at, header, now_ms)) for at, header in batches]


def append_time_of(header: BatchHeader) -> int:
    """The time that the batch's records got when they were appended; NO_APPEND_TIME if they carry their producer's."""
    return header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else NO_APPEND_TIME


def _differs(header: BatchHeader, codec: int) -> bool:
    return header.attributes & COMPRESSION_MASK != codec and not header.is_control


def _recompressed(
    payload: Buffer, batches: list[tuple[int, BatchHeader]], codec: int, room: int
) -> tuple[Buffer, list[tuple[int, BatchHeader]]]:
    view, made = memoryview(payload), bytearray()
    placed: list[tuple[int, BatchHeader]] = []
    for at, header in batches:
        position = len(made)
        if _differs(header, codec):
            plain = body_of(payload, at, header, max_bytes=room)
            room -= len(plain)
            body = compress(codec, plain)
            attributes = header.attributes & ~COMPRESSION_MASK | codec
            made += with_body(header._replace(attributes=attributes), body)
            made += body
        else:
            made += view[at : at + header.size]
        placed.append((position, parse_header(made, position)))
    return made, placed


def _stamped(view: memoryview, at: int, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Put the time into the header at `at`, under a new CRC; the deltas in the body mean nothing from then on."""
    if header.is_control:
        return header
    changed = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=now_ms)
    view[at : at + HEADER_BYTES] = with_body(changed, view[at + HEADER_BYTES : at + header.size])
    return parse_header(view, at)
