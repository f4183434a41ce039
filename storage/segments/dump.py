"""Shows the contents of a partition's files, as plain rows, for `raylog log dump` and for tests.

Reads files without opening the log, so it may run beside a live broker or on a damaged folder. Damage in a file never
raises: it becomes a `ProblemRow` with its position, and the dump of that file ends there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raylog.base.errors import RaylogError
from raylog.storage import filesystem
from raylog.storage.batch.compression import COMPRESSIONS
from raylog.storage.batch.header import HEADER_BYTES, BatchHeader, check_crc, parse_header
from raylog.storage.batch.marker import decode_marker, is_marker
from raylog.storage.batch.records import Header, decode_batch
from raylog.storage.errors import CorruptBatch
from raylog.storage.files import exists, list_files, read_at, read_bytes
from raylog.storage.segments.aborted import from_bytes
from raylog.storage.segments.index import IndexDamaged, OffsetIndex, TimeIndex
from raylog.storage.segments.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX

_CODEC_NAMES = {number: name for name, number in COMPRESSIONS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One batch: its position, its header's fields, and whether its CRC is right."""

    file: str
    position: int
    size: int
    base_offset: int
    last_offset: int
    record_count: int
    leader_epoch: int
    magic: int
    compression: str
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    crc: int
    crc_valid: bool
    marker: str | None = None
    """How it ends its producer's transaction: commit or abort; None = it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """One record of the batch before it."""

    file: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """Damage at this byte of this file."""

    file: str
    position: int
    reason: str


Row = BatchRow | RecordRow | ProblemRow


def dump_segment(path: Path, *, records: bool = False) -> Iterator[Row]:
    """Every batch of a `.log` file in order, with its records if requested, up to the first damage."""
    position, expected = 0, -1
    try:
        fd = filesystem.open(path, os.O_RDONLY | os.O_CLOEXEC, 0)
    except OSError as error:
        yield ProblemRow(file=path.name, position=0, reason=f"cannot be opened: {error}")
        return
    try:
        end = filesystem.fstat(fd).st_size
        while position < end:
            try:
                header, data = _read_batch(fd, position, end)
            except CorruptBatch as error:
                yield ProblemRow(file=path.name, position=position, reason=error.reason)
                return
            if expected >= 0 and header.base_offset != expected:
                reason = f"offset {header.base_offset} follows, {expected} was expected"
                yield ProblemRow(file=path.name, position=position, reason=reason)
            row = _batch_row(path.name, position, header, data)
            yield row
            if records and row.crc_valid and row.record_count:  # what a cleaner has emptied has no body
                yield from _record_rows(path.name, position, header, data)
            position += header.size
            expected = header.next_offset
    except OSError as error:
        yield ProblemRow(file=path.name, position=position, reason=f"cannot be read: {error}")
    finally:
        filesystem.close(fd)


def _read_batch(fd: int, position: int, end: int) -> tuple[BatchHeader, bytes]:
    header = parse_header(read_at(fd, HEADER_BYTES, position))
    if position + header.size > end:
        raise CorruptBatch(f"a batch of {header.size} bytes is cut off")
    return header, read_at(fd, header.size, position)


def _batch_row(name: str, position: int, header: BatchHeader, data: bytes) -> BatchRow:
    try:
        check_crc(data, 0, header)
        valid = True
    except CorruptBatch:
        valid = False
    return BatchRow(
        file=name,
        position=position,
        size=header.size,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        leader_epoch=header.partition_leader_epoch,
        magic=header.magic,
        compression=_CODEC_NAMES.get(header.compression, str(header.compression)),
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        crc=header.crc,
        crc_valid=valid,
        marker=_marker(header, data) if valid else None,
    )


def _marker(header: BatchHeader, data: bytes) -> str | None:
    if not is_marker(header):
        return None
    try:
        return "commit" if decode_marker(data, 0, header).committed else "abort"
    except CorruptBatch:
        return None


def _record_rows(name: str, position: int, header: BatchHeader, data: bytes) -> Iterator[Row]:
    try:
        columns = decode_batch(data, 0, header, verify=False)
    except RaylogError as error:  # a corrupt body, or a codec whose library is missing here
        yield ProblemRow(file=name, position=position, reason=str(error))
        return
    for index, offset in enumerate(columns.offsets):
        yield RecordRow(
            file=name,
            offset=offset,
            timestamp=columns.timestamps[index],
            key=columns.keys[index] if columns.keys is not None else None,
            value=columns.values[index] if columns.values is not None else None,
            headers=(columns.headers[index] if columns.headers is not None else None) or [],
        )


def check_indexes(path: Path) -> Iterator[ProblemRow]:
    """Errors in the indexes of a `.log` file; none for the active segment, which has no indexes on disk."""
    batches = {row.position: row for row in dump_segment(path) if isinstance(row, BatchRow)}
    base = int(path.stem) if path.stem.isdecimal() else 0
    offsets_file, times_file = path.with_suffix(INDEX), path.with_suffix(TIME_INDEX)
    try:
        if exists(offsets_file):
            index = OffsetIndex.from_bytes(read_bytes(offsets_file), filesystem.stat(path).st_size)
            for place, position in enumerate(index.positions):
                row = batches.get(position)
                if row is None or row.base_offset != base + index.offsets[place]:
                    reason = (
                        f"entry {place} points to byte {position}, where offset {base + index.offsets[place]} is not"
                    )
                    yield ProblemRow(file=offsets_file.name, position=8 * place, reason=reason)
    except (IndexDamaged, OSError) as error:
        yield ProblemRow(file=offsets_file.name, position=0, reason=str(error))
    try:
        if exists(times_file):
            yield from _check_times(times_file, base, list(batches.values()))
    except (IndexDamaged, OSError) as error:
        yield ProblemRow(file=times_file.name, position=0, reason=str(error))
    yield from _check_aborted(path.with_suffix(TXN_INDEX), list(batches.values()))


def _check_aborted(path: Path, batches: list[BatchRow]) -> Iterator[ProblemRow]:
    if not exists(path):
        return
    try:
        entries = from_bytes(read_bytes(path))
    except (CorruptBatch, OSError) as error:
        yield ProblemRow(file=path.name, position=0, reason=str(error))
        return
    markers = {row.base_offset: row.producer_id for row in batches if row.marker == "abort"}
    for place, entry in enumerate(entries):
        if markers.get(entry.last_offset) != entry.producer_id:
            reason = (
                f"entry {place} says that producer {entry.producer_id} aborts at {entry.last_offset}, and it does not"
            )
            yield ProblemRow(file=path.name, position=4 + 32 * place, reason=reason)


def _check_times(path: Path, base: int, batches: list[BatchRow]) -> Iterator[ProblemRow]:
    times = TimeIndex.from_bytes(read_bytes(path))
    largest, seen = -(2**63), 0
    for place, offset in enumerate(times.offsets):
        while seen < len(batches) and batches[seen].last_offset < base + offset:
            largest = max(largest, batches[seen].max_timestamp)
            seen += 1
        if largest != times.timestamps[place]:
            reason = f"entry {place} says {times.timestamps[place]}, the youngest record before is {largest}"
            yield ProblemRow(file=path.name, position=12 * place, reason=reason)


def dump_folder(folder: Path, *, records: bool = False) -> Iterator[Row]:
    """Every segment of a partition in order, and the errors of its indexes."""
    for path in list_files(folder, LOG):
        yield from dump_segment(path, records=records)
        yield from check_indexes(path)
