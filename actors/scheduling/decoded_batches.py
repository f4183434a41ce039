"""Reads scheduled records from the leader's log, and encodes those that are due into batches for their targets.

Owned by the scheduler's role. A batch is decoded once for all its records that are due at about the same time. May
touch: the role's own log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from raylog.actors.roles.host import OwnLog
from raylog.actors.scheduling.rows import Copy, copies_of
from raylog.base.errors import InvalidRecord
from raylog.core.dead_letters import Cause, Reason, dead_headers
from raylog.core.lane import SEQUENCES
from raylog.core.queues.origins import PREFIX, Origin, own_timestamp
from raylog.core.queues.origins import without as without_origin
from raylog.core.scheduling.envelope import OWN_HEADERS, SENT_HEADER, Envelope, Header, without
from raylog.core.scheduling.keys import due_at, due_of, offset_of
from raylog.core.scheduling.rows import Batch, Relocated
from raylog.storage.batch.columns import Columns
from raylog.storage.batch.header import BatchHeader, check_crc, iter_headers
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch
from raylog.storage.errors import CorruptBatch

CACHE_BYTES: Final = 32 * 1024 * 1024
"""Memory for decoded batches, with all their objects, in bytes."""
BATCH_MEMORY_BYTES: Final = 512
RECORD_MEMORY_BYTES: Final = 220
HEADER_MEMORY_BYTES: Final = 145
"""Memory of a batch, a record and a header besides the bytes of keys, values and names, as measured, in bytes."""
COPIES_BYTES: Final = 256 * 1024
"""Most bytes of records that one row relocates; a single record may be larger."""
ROW_BYTES: Final = 64
"""Upper bound of a record's bytes besides its key, its value and its own headers; added headers are included."""
HEADER_BYTES: Final = 12
"""Upper bound of the bytes of one header besides its name and value."""


class Body(NamedTuple):
    """One record as its producer sent it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] | None
    damage: str = ""
    """Why the record cannot be decoded; then the other fields are None. Empty = it can."""

    @property
    def size_bytes(self) -> int:
        """Upper bound of the record's bytes in a batch."""
        own = [header for header in self.headers or () if header[0] not in OWN_HEADERS]
        headers = sum(4 * len(name) + len(value or b"") + HEADER_BYTES for name, value in own)
        return len(self.key or b"") + len(self.value or b"") + headers + ROW_BYTES


@dataclass(slots=True)
class DecodedBatch:
    """A batch of the log, decoded."""

    first: int
    end: int
    columns: Columns | str
    """The columns; or a text: why the batch cannot be decoded."""
    size: int
    copies: Sequence[int] | None
    """For a :class:`Relocated` row with its records: their original offsets; None for any other batch."""

    def index_of(self, offset: int) -> int | None:
        """Return the index of the record with this original offset; None = it is not in the batch."""
        if self.copies is None:
            return offset - self.first if self.first <= offset < self.end else None
        index = bisect_left(self.copies, offset)
        return index + 1 if index < len(self.copies) and self.copies[index] == offset else None


class Bodies:
    """The records of the log, by their original offsets (those before any relocation).

    Invariants: ``_firsts == sorted(_kept)``; ``_bytes == sum(size of _kept) <= CACHE_BYTES``, or there is one batch.
    """

    def __init__(self, log: OwnLog, row_of: Callable[[int], int | None]) -> None:
        """``row_of`` returns the offset of the :class:`Relocated` row with a record's copy; None: it was not copied."""
        self._log = log
        self._row_of = row_of
        self._kept: OrderedDict[int, DecodedBatch] = OrderedDict()
        """Batches by their first offsets; the one that was used last is the last."""
        self._firsts: list[int] = []
        self._bytes = 0
        self._last: DecodedBatch | None = None

    @property
    def kept_bytes(self) -> int:
        """Memory of the batches that are kept, in bytes."""
        return self._bytes

    def read(self, offset: int) -> Body:
        """Return the record with this original offset, which is below the high watermark. Raises errors of the log."""
        decoded, index = self._at(offset)
        columns = decoded.columns
        if isinstance(columns, str):
            return Body(offset, None, None, None, columns)
        return Body(
            offset,
            None if columns.keys is None else columns.keys[index],
            None if columns.values is None else columns.values[index],
            None if columns.headers is None else columns.headers[index],
        )

    def due_ms(self, offset: int) -> int:
        """Return the record's original due time, in milliseconds since 1970."""
        return due_at(self.timestamp_ms(offset))

    def timestamp_ms(self, offset: int) -> int:
        """Return the record's timestamp as it is stored. Raises InvalidRecord if the record cannot be decoded."""
        decoded, index = self._at(offset)
        if isinstance(decoded.columns, str):
            raise InvalidRecord(f"The record at offset {offset} of the schedule cannot be opened: {decoded.columns}.")
        return decoded.columns.timestamps[index]

    def _at(self, offset: int) -> tuple[DecodedBatch, int]:
        decoded = self._last
        index = None if decoded is None else decoded.index_of(offset)
        if decoded is None or index is None:
            decoded = self._last = self._find(offset)
            index = decoded.index_of(offset)
        if index is None:
            raise InvalidRecord(f"The record at offset {offset} of the schedule cannot be found.")
        return decoded, index

    def _find(self, offset: int) -> DecodedBatch:
        row = self._row_of(offset)
        place = offset if row is None else row
        number = bisect_right(self._firsts, place) - 1
        if number >= 0 and place < (decoded := self._kept[self._firsts[number]]).end:
            self._kept.move_to_end(decoded.first)
            return decoded
        records = self._log.read(place, 1, self._log.log_end_offset)
        for position, header in iter_headers(records):
            if header.base_offset <= place < header.next_offset:
                check_crc(records, position, header)  # raises if bytes have changed on the disk, to be read again
                columns = _opened(records, position, header)
                copies = None if row is None or isinstance(columns, str) else copies_of(columns)
                size = BATCH_MEMORY_BYTES if isinstance(columns, str) else _bytes_of(columns)
                return self._keep(DecodedBatch(header.base_offset, header.next_offset, columns, size, copies))
        raise InvalidRecord(f"The record at offset {offset} of the schedule cannot be found.")

    def _keep(self, decoded: DecodedBatch) -> DecodedBatch:
        self._kept[decoded.first] = decoded
        insort(self._firsts, decoded.first)
        self._bytes += decoded.size
        while self._bytes > CACHE_BYTES and len(self._kept) > 1:
            first, oldest = self._kept.popitem(last=False)
            del self._firsts[bisect_left(self._firsts, first)]
            self._bytes -= oldest.size
        return decoded


def _opened(records: Any, position: int, header: BatchHeader) -> Columns | str:
    try:
        return decode_batch(records, position, header, verify=False)
    except CorruptBatch as error:
        return error.reason


def _bytes_of(columns: Columns) -> int:
    """Return the approximate size of the columns in memory; compressed data may expand a thousand times."""
    plain = sum(len(value) for column in (columns.keys, columns.values) for value in column or () if value is not None)
    headers = [header for each in columns.headers or () for header in each or ()]
    plain += sum(len(name) + len(value or b"") for name, value in headers)
    objects = RECORD_MEMORY_BYTES * len(columns.timestamps) + HEADER_MEMORY_BYTES * len(headers)
    return BATCH_MEMORY_BYTES + objects + plain


def envelope_of(body: Body) -> Envelope | None:
    """Return the record's envelope, which has its target; None = it has no valid one."""
    try:
        return Envelope.of(body.headers)
    except InvalidRecord:
        return None


def encode(
    bodies: Sequence[Body],
    batch: Batch,
    writer: tuple[int, int],
    *,
    adds_sent_time: bool,
    causes: dict[int, tuple[Reason, str]],
) -> bytes:
    """Return the batch for a target; the same bytes each time the batch is sent.

    ``writer``: producer id and epoch. ``causes``: reason and message of the records that are dead letters, by offset.
    """
    headers = [_headers(body, adds_sent_time=adds_sent_time, cause=causes.get(body.offset)) for body in bodies]
    return encode_batch(
        [body.key for body in bodies],
        [body.value for body in bodies],
        [due_of(key) for key in batch.keys],
        headers if any(headers) else None,
        BatchMeta(*writer, batch.base_sequence % SEQUENCES),
    )


def _headers(body: Body, *, adds_sent_time: bool, cause: tuple[Reason, str] | None) -> list[Any] | None:
    kept = without(body.headers)
    envelope = envelope_of(body)
    if cause is not None:
        (topic, partition, offset), stamp_ms = ("", -1, body.offset), -1
        if envelope is not None:
            topic, partition = envelope.topic, envelope.partition
        if topic.startswith(PREFIX) and (origin := Origin.of(kept)) is not None:
            # A late retry of a group: a redrive has to lead to the record's own topic, not to the group's retry topic.
            topic, partition, offset, _ = origin
            kept, stamp_ms = without_origin(kept), own_timestamp(kept, -1)
        reason, message = cause
        where = Cause(
            reason=reason, topic=topic, partition=partition, offset=offset, message=message, timestamp_ms=stamp_ms
        )
        return list(dead_headers(kept, where))
    if adds_sent_time and envelope is not None:
        kept.append((SENT_HEADER, str(envelope.sent_ms).encode()))
    return kept or None


def bodies_of(source: Bodies, keys: Sequence[int]) -> list[Body]:
    """Return the records of ``keys`` in their order; each batch of the log is decoded once."""
    by_key = {key: source.read(offset_of(key)) for key in sorted(keys, key=offset_of)}
    return [by_key[key] for key in keys]


def copies_for(source: Bodies, row: Relocated) -> list[Copy]:
    """Return copies of the first records that a row relocates, as many as fit into one batch."""
    copies: list[Copy] = []
    size = 0
    for offset in row.offsets:
        body = source.read(offset)
        size += body.size_bytes
        if copies and size > COPIES_BYTES:
            break
        headers = None if body.headers is None else list(body.headers)
        timestamp_ms = 0 if body.damage else source.timestamp_ms(offset)
        copies.append(Copy(timestamp_ms, body.key, body.value, headers))
    return copies
