"""Reads and writes the file `<base offset>.txnindex` of a segment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raylog.storage.errors import CorruptBatch, LogDamaged, from_os_error
from raylog.storage.log.files import read_bytes, remove, write_atomically
from raylog.storage.transactions.aborted import AbortedTxn, from_bytes, to_bytes


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
