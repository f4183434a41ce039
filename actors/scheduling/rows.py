"""The batches of ``__scheduled`` as events of the scheduler's machine, and its rows as batches. Pure.

A batch without producer id has one row of an owner; every other one has records of a producer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from raylog.actors.roles.host import OwnLog
from raylog.core.scheduling.envelope import HalfName
from raylog.core.scheduling.events import DataRead, HeldRecord, RowRead
from raylog.core.scheduling.keys import HELD_MS
from raylog.core.scheduling.rows import Row, RunWritten, from_wire, to_wire
from raylog.storage.batch.columns import Columns
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import decode_batch, encode_batch, open_batch
from raylog.storage.errors import CorruptBatch

DIRECTORY_BYTES: Final = 64 * 1024
"""The directory of a run of three million keys is shorter; one run has a hundred thousand."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode_row(row: Row, timestamp_ms: int) -> bytes:
    """Return the batch of a row."""
    data = row.data if isinstance(row, RunWritten) else None
    return encode_batch([_encode(to_wire(row))], [data], [timestamp_ms])


def read_batches(records: bytes, offset: int) -> Iterator[DataRead | RowRead]:
    """Return the events of batches, from the one at an offset on. Raises CorruptBatch and ValueError."""
    for position, header in iter_headers(records):
        if header.base_offset < offset:
            continue
        if header.producer_id < 0:
            columns = decode_batch(records, position, header)
            yield RowRead(offset=header.base_offset, row=_row(columns), size_bytes=header.size)
        else:
            opened = open_batch(records, position, header)
            dues = tuple(opened.column("timestamps") or ())
            held = () if header.max_timestamp < HELD_MS else _held(header.base_offset, dues, opened.column("headers"))
            yield DataRead(base_offset=header.base_offset, dues=dues, size_bytes=header.size, held=held)


def _held(base_offset: int, dues: Sequence[int], headers: Sequence[Any] | None) -> tuple[HeldRecord, ...]:
    """Return the records of a batch that are parts of half messages."""
    found = []
    for index, due_ms in enumerate(dues):
        name = None if due_ms < HELD_MS or headers is None else HalfName.of(headers[index])
        if name is not None:
            found.append(HeldRecord(base_offset + index, name.id, name.check_after_ms))
    return tuple(found)


def _row(columns: Columns) -> Row:
    key = None if columns.keys is None else columns.keys[0]
    value = None if columns.values is None else columns.values[0]
    if key is None:
        raise CorruptBatch("a row of the scheduler has no key")
    wire: list[Any] = _decode(key)
    return from_wire(wire, value or b"")


def run_part(log: OwnLog, offset: int, start: int, end: int | None) -> bytes:
    """Return a part of the run in the record at an offset; ``end`` None = all from ``start`` on."""
    records = log.read(offset, 1, log.log_end_offset)
    for position, header in iter_headers(records):
        if header.base_offset == offset:
            values = open_batch(records, position, header).column("values")
            if values is not None and values[0] is not None:
                return bytes(values[0][start:end])
    raise CorruptBatch(f"there is no run at offset {offset}")


def run_directory(log: OwnLog, offset: int) -> bytes:
    """Return the beginning of the run in the record at an offset, with its directory."""
    return run_part(log, offset, 0, DIRECTORY_BYTES)
