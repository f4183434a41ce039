"""Checks the structure of a producer's body: a leader stores nothing that no reader could open.

A body of columns is an array of four; each is nil or has one element per record. A small body is walked through, in C.
In a large one only what needs no walk is checked: the first bytes of its columns, as far as their places are known, and
the last byte. A compressed body must not declare a plain size above the bound for what a client has to decompress
(docs/adr/0089). Then it is opened, and walked through (docs/adr/0113). Kafka's rows are only decompressed. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from raylog.base.errors import UnsupportedCompression
from raylog.storage.batch.columns import split_columns
from raylog.storage.batch.compression import Buffer, decompress, plain_bound, plain_size
from raylog.storage.batch.grids import FOUR_COLUMNS, NIL, array_at
from raylog.storage.batch.header import COMPRESSION_MASK, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC_COLUMNS, BatchHeader
from raylog.storage.batch.records import BODY_BYTES_MAX
from raylog.storage.errors import BodyTooLarge, CorruptBatch

WALKED_BYTES_MAX: Final = 1 << 10
"""Larger bodies are not walked through: that would take a twentieth of the time of their append."""
STEPPED_BYTES_MIN: Final = 64 << 10
"""In bodies of this size or more, stepping over a column of small numbers costs next to nothing beside the checksum."""
_COLUMNS: Final = 4
ONE_VALUE: Final = bytes((FOUR_COLUMNS, NIL, NIL, 0x91, 0xC4))
"""Begins the body of one record with no timestamp delta, no key, and a value of up to 255 bytes: its length comes next,
and no headers come after it."""
one_value_head: Final = struct.Struct(">5sB").unpack_from
"""These bytes, and the length."""
columns_head: Final = struct.Struct(">BBBBH").unpack_from
"""The first four bytes of a body, and the number after them.

Without deltas and keys the fourth begins the array of values, and the number is its length; an array of deltas begins
with the second, and its length is in the next two."""


def check_structure(payload: Buffer, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatch for a body that readers surely could not open, BodyTooLarge for one that is too large."""
    start, end = position + HEADER_BYTES, position + header.batch_length + LENGTH_PREFIX_BYTES
    codec = header.attributes & COMPRESSION_MASK
    if codec:
        size = plain_size(codec, memoryview(payload)[start:end], BODY_BYTES_MAX)
        if size is not None and size > BODY_BYTES_MAX:
            raise _too_large(size, position)
        return
    if end - start > BODY_BYTES_MAX:
        raise _too_large(end - start, position)
    if header.magic != MAGIC_COLUMNS:
        return
    rows = header.record_count
    try:
        if end - start > WALKED_BYTES_MAX:
            is_sound = has_sound_heads(payload, start, end, rows)
        else:
            is_sound = _is_sound(memoryview(payload)[start:end], rows)
    except (msgspec.MsgspecError, RecursionError, IndexError):
        is_sound = False
    if not is_sound:
        raise CorruptBatch(f"its body is not {_COLUMNS} columns of {rows} records", position=position)


def open_to_check(payload: Buffer, position: int, header: BatchHeader, room: int) -> int:
    """Open a compressed body, and return its plain size; 0 if this machine does not have the codec.

    A body that may have more than `room` bytes is not checked, and counts as `room`. Raises CorruptBatch if it does not
    open, or to something else than its header says.
    """
    if room <= 0:
        return 0
    codec = header.attributes & COMPRESSION_MASK
    body = memoryview(payload)[position + HEADER_BYTES : position + header.size]
    try:
        plain = decompress(codec, body, max_bytes=room)
    except BodyTooLarge as error:
        if plain_bound(codec, body) <= room:
            raise CorruptBatch("its compressed body has more bytes than it declares", position=position) from error
        return room
    except UnsupportedCompression:
        return 0
    check_opened(plain, position, header)
    return len(plain)


def check_opened(plain: Buffer, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatch if a decompressed body is not what its header says. Only columns are checked, not rows."""
    if header.magic != MAGIC_COLUMNS:
        return
    try:
        is_sound = bool(plain) and _is_sound(memoryview(plain), header.record_count)
    except (msgspec.MsgspecError, RecursionError, IndexError):
        is_sound = False
    if not is_sound:
        reason = f"its decompressed body is not {_COLUMNS} columns of {header.record_count} records"
        raise CorruptBatch(reason, position=position)


def _too_large(size: int, position: int) -> BodyTooLarge:
    return BodyTooLarge(f"its body has {size} bytes when decompressed, above {BODY_BYTES_MAX}", position=position)


def _is_sound(body: memoryview, rows: int) -> bool:
    if body[0] != FOUR_COLUMNS:
        return False
    for column in split_columns(body):
        part = memoryview(column)
        if part[0] != NIL:
            found = array_at(part, 0)
            if found is None or found[0] != rows:
                return False
    return True


def has_sound_heads(payload: Buffer, start: int, end: int, rows: int) -> bool:
    """Whether a body of four columns has `rows` records, as far as that shows without walking through a column.

    Raises IndexError if it ends too early.
    """
    if payload[start] != FOUR_COLUMNS:
        return False
    at = start + 1
    for number in range(_COLUMNS):
        if payload[at] == NIL:
            at += 1
            continue
        found = array_at(payload, at)
        if found is None or found[0] != rows:
            return False
        stop = found[1] + rows
        if number or end - start < STEPPED_BYTES_MIN or not bytes(memoryview(payload)[found[1] : stop]).isascii():
            return True  # where this column ends is not known; small numbers, of one byte each, are the usual deltas
        at = stop
    return at == end
