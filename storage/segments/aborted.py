"""The aborted transactions of a segment, and their file `<base offset>.txnindex`.

A segment lists those whose markers it holds, in the order of the markers. The file is written before the segment gets a
successor, and only if there is one to list: 32 bytes each, then a CRC-32C. `find` searches a list.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from raylog.storage.errors import CorruptBatch, LogDamaged, from_os_error
from raylog.storage.files import read_bytes, remove, write_atomically

_MAGIC: Final = b"RTX1"
_ENTRY: Final = struct.Struct(">qqqq")
_CRC: Final = struct.Struct(">I")


class AbortedTxn(NamedTuple):
    """One aborted transaction in a partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of its marker."""
    last_stable_offset: int
    """First offset of the oldest transaction that was open then, or the offset after the marker if none was. Every
    transaction that ends later begins at or after it."""


def find(entries: Sequence[AbortedTxn], start: int, upper: int, found: list[AbortedTxn]) -> bool:
    """Append to `found` those with offsets in [start, upper); True if no later entry of the log can have any."""
    for place in range(bisect_left(entries, start, key=lambda entry: entry.last_offset), len(entries)):
        entry = entries[place]
        if entry.first_offset < upper:
            found.append(entry)
        if entry.last_stable_offset >= upper:
            return True
    return False


def is_as_good(kept: Sequence[AbortedTxn], found: Sequence[AbortedTxn]) -> bool:
    """Whether the entries of a file, `kept`, may stay although the batches now give `found`.

    They may if they are the same transactions, with last stable offsets that are not higher. An offset is lower if a
    transaction was open then whose first records were removed since. A lower one lets `find` look further than it has
    to; a higher one would let it miss transactions.
    """
    return [entry[:3] for entry in kept] == [entry[:3] for entry in found] and all(
        before.last_stable_offset <= now.last_stable_offset for before, now in zip(kept, found, strict=True)
    )


def to_bytes(entries: Sequence[AbortedTxn]) -> bytes:
    """The contents of the file."""
    body = _MAGIC + b"".join([_ENTRY.pack(*entry) for entry in entries])
    return body + _CRC.pack(google_crc32c.value(body))


def from_bytes(data: bytes) -> list[AbortedTxn]:
    """Read `to_bytes`; CorruptBatch when the file is cut off or altered."""
    body = data[: -_CRC.size]
    whole = data[:4] == _MAGIC and (len(body) - 4) % _ENTRY.size == 0
    if not whole or data[-_CRC.size :] != _CRC.pack(google_crc32c.value(body)):
        raise CorruptBatch("the index of aborted transactions has a wrong magic, length or CRC")
    return [AbortedTxn(*fields) for fields in _ENTRY.iter_unpack(body[4:])]


def read_aborted(path: Path, base_offset: int) -> list[AbortedTxn]:
    """The entries. Raises LogDamaged if the file is missing or altered, StorageIoError, DescriptorsExhausted."""
    try:
        return from_bytes(read_bytes(path))
    except (FileNotFoundError, CorruptBatch) as error:
        raise LogDamaged(path, 0, base_offset, str(error)) from error
    except OSError as error:
        raise from_os_error(f"read {path}", error) from error


def write_aborted(path: Path, entries: Sequence[AbortedTxn]) -> bool:
    """Write the file, durably; without entries remove it. True if it is there now. Raises DiskFull, StorageIoError."""
    if entries:
        write_atomically(path, to_bytes(entries))
    else:
        remove(path)
    return bool(entries)
