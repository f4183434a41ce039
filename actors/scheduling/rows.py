"""Decodes batches of ``__scheduled`` into events of the scheduler's state machine, and encodes its rows. Pure.

A batch without a producer id has a row of the scheduler, possibly followed by relocated records. Every other batch has
records of a producer. The state grows with the records that wait for targets without leaders, and with half messages,
while the log limits the size of a row: so a large checkpoint is stored in several rows, and a last row has their
offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from raylog.base.errors import UnsupportedVersion
from raylog.core.scheduling.envelope import HalfName, name_among
from raylog.core.scheduling.events import DataRead, HeldRecord, RowRead, Unreadable
from raylog.core.scheduling.keys import HELD_MS, NAMED_MS, due_at
from raylog.core.scheduling.rows import Checkpoint, CheckpointEnd, CheckpointPart, Column, Relocated, Row
from raylog.storage.batch.columns import Columns, Header
from raylog.storage.batch.header import BatchHeader, check_crc, iter_headers
from raylog.storage.batch.records import decode_batch, encode_batch
from raylog.storage.errors import CorruptBatch

logger = logging.getLogger(__name__)

PART_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a piece. A checkpoint that is not larger is one row."""


def _stored(column: Column) -> object:
    return column.to_wire()


def _read(kind: type[Column], wire: object) -> Column:
    return kind.from_wire(wire)


encode_key = msgspec.msgpack.Encoder(enc_hook=_stored).encode
"""Returns a row as it is stored, without the record's value."""
decode_key: Callable[[bytes], Row] = msgspec.msgpack.Decoder(Row, dec_hook=_read).decode
"""Returns the row; raises MsgspecError for one of another release."""


def encode_row(row: Row, timestamp_ms: int, copies: Sequence[Copy] = (), value: bytes = b"") -> bytes:
    """Return the batch of a row, followed by ``copies``."""
    return encode_batch(
        [encode_key(row), *(copy.key for copy in copies)],
        [value or None, *(copy.value for copy in copies)],
        [timestamp_ms, *(copy.timestamp_ms for copy in copies)],
        [None, *(copy.headers for copy in copies)] if copies else None,
    )


class Copy(NamedTuple):
    """A record that is appended again, to relocate it."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] | None


def read_batches(records: bytes, offset: int) -> Iterator[DataRead | RowRead | Unreadable]:
    """Return the events of the batches from an offset on. Raises CorruptBatch, UnsupportedVersion.

    A producer's batch that was stored with good bytes, but cannot be decoded, yields Unreadable: it can never be
    delivered.
    """
    for position, header in iter_headers(records):
        if header.base_offset < offset:
            continue
        if header.producer_id < 0:
            columns = decode_batch(records, position, header)
            value = None if columns.values is None else columns.values[0]
            yield RowRead(offset=header.base_offset, row=_row(columns), size_bytes=header.size, value=value or b"")
        else:
            yield _data(records, position, header)


def _data(records: bytes, position: int, header: BatchHeader) -> DataRead | Unreadable:
    base = header.base_offset
    try:
        columns = decode_batch(records, position, header, verify=False)
    except CorruptBatch as error:
        check_crc(records, position, header)  # raises if bytes have changed on the disk, to be read again
        logger.error(
            "the delayed records at offset %d of the schedule cannot be opened, and are passed over: %s",
            base,
            error.reason,
        )
        return Unreadable(base_offset=base, records=header.next_offset - base, size_bytes=header.size)
    dues = tuple(columns.timestamps)
    held: tuple[HeldRecord, ...] = ()
    names: tuple[tuple[int, int], ...] = ()
    if header.max_timestamp >= NAMED_MS:
        held, names = _held(base, dues, columns.headers), _names(base, dues, columns.headers)
        dues = tuple(map(due_at, dues))
    return DataRead(base_offset=base, dues=dues, size_bytes=header.size, held=held, names=names)


def _held(base_offset: int, dues: Sequence[int], headers: Sequence[Any] | None) -> tuple[HeldRecord, ...]:
    """Return the records of a batch that belong to half messages."""
    found = []
    for index, due_ms in enumerate(dues):
        name = None if due_ms < HELD_MS or headers is None else HalfName.of(headers[index])
        if name is not None:
            found.append(HeldRecord(base_offset + index, name.id, name.check_after_ms))
    return tuple(found)


def _names(base_offset: int, dues: Sequence[int], headers: Sequence[Any] | None) -> tuple[tuple[int, int], ...]:
    """Return (offset, name) of a batch's records with schedule ids."""
    return tuple(
        (base_offset + index, name)
        for index, due_ms in enumerate(dues)
        if headers is not None and NAMED_MS <= due_ms < HELD_MS and (name := name_among(headers[index]))
    )


def copies_of(columns: Columns) -> tuple[int, ...]:
    """Return the original offsets of the records in a batch of relocated ones. Raises CorruptBatch."""
    row = _row(columns)
    if not isinstance(row, Relocated):
        raise CorruptBatch("a row of the scheduler should have copies behind it, and has not")
    return row.offsets


def _row(columns: Columns) -> Row:
    key = None if columns.keys is None else columns.keys[0]
    if key is None:
        raise CorruptBatch("a row of the scheduler has no key")
    try:
        return decode_key(key)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UnsupportedVersion(
            f"The row of the scheduler at offset {columns.offsets[0]} cannot be read ({error}); another release of "
            "Raylog wrote it: install that release."
        ) from error


def pieces(row: Checkpoint, part_bytes: int = PART_BYTES) -> list[tuple[CheckpointPart, bytes]]:
    """Return the pieces of a checkpoint, each with its value; none if it fits into one row."""
    data = encode_key(row)
    if len(data) <= part_bytes:
        return []
    cut = (data[start : start + part_bytes] for start in range(0, len(data), part_bytes))
    return [(CheckpointPart(row.number, index), part) for index, part in enumerate(cut)]


def joined(end: CheckpointEnd, rows: Sequence[RowRead | None]) -> Checkpoint:
    """Return the checkpoint that consists of these rows.

    Raises CorruptBatch if a row is not the expected piece, and UnsupportedVersion for one of another release.
    """
    data: list[bytes] = []
    for index, read in enumerate(rows):
        if read is None or read.row != CheckpointPart(end.number, index):
            raise CorruptBatch(f"there is no piece {index} of checkpoint {end.number}")
        data.append(read.value)
    try:
        row = decode_key(b"".join(data))
    except (ValueError, msgspec.MsgspecError) as error:
        raise UnsupportedVersion(
            f"Checkpoint {end.number} of the scheduler cannot be read ({error}); another release of Raylog wrote it: "
            "install that release."
        ) from error
    if not isinstance(row, Checkpoint):
        raise CorruptBatch(f"the pieces of checkpoint {end.number} are another row")
    return row
