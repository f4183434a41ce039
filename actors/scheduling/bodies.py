"""Reads scheduled records out of the leader's log, and puts those that are due into batches for their targets.

Owned by the scheduler's role. A batch is decoded once for all its records that are due about the same time. May touch:
the role's own log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from raylog.actors.roles.host import OwnLog
from raylog.core.dead_letters import Cause, Reason, dead_headers
from raylog.core.errors import InvalidRecord
from raylog.core.scheduling.envelope import SENT_HEADER, Envelope, Header, without
from raylog.core.scheduling.keys import due_of, offset_of
from raylog.core.scheduling.rows import Batch
from raylog.storage.batch.columns import Columns
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch

CACHE_BYTES: Final = 32 * 1024 * 1024
"""Encoded bytes of the batches that stay decoded."""
ROW_BYTES: Final = 64
"""What a record's header, key and value take besides their bytes, at most."""


class Body(NamedTuple):
    """One record as its producer sent it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] | None

    @property
    def size_bytes(self) -> int:
        """About how much it takes in a batch."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers + ROW_BYTES


@dataclass(slots=True)
class _Held:
    first: int
    end: int
    columns: Columns
    size: int


class Bodies:
    """The records of the log, by offset."""

    def __init__(self, log: OwnLog) -> None:
        """``log``: the leader's."""
        self._log = log
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._bytes = 0
        self._last: _Held | None = None

    def read(self, offset: int) -> Body:
        """Return the record at an offset below the high watermark. Raises what the log raises."""
        held = self._last
        if held is None or not held.first <= offset < held.end:
            held = self._last = self._find(offset)
        columns, index = held.columns, offset - held.first
        return Body(
            offset,
            None if columns.keys is None else columns.keys[index],
            None if columns.values is None else columns.values[index],
            None if columns.headers is None else columns.headers[index],
        )

    def due_ms(self, offset: int) -> int:
        """Return when the record at an offset was due first."""
        self.read(offset)
        held = self._last
        if held is None:
            raise InvalidRecord(f"The record at offset {offset} of the schedule cannot be found.")
        return held.columns.timestamps[offset - held.first]

    def _find(self, offset: int) -> _Held:
        for first, held in reversed(self._held.items()):
            if held.first <= offset < held.end:
                self._held.move_to_end(first)
                return held
        records = self._log.read(offset, 1, self._log.log_end_offset)
        for position, header in iter_headers(records):
            if header.base_offset <= offset < header.next_offset:
                held = _Held(
                    header.base_offset, header.next_offset, decode_batch(records, position, header), header.size
                )
                return self._keep(held)
        raise InvalidRecord(f"The record at offset {offset} of the schedule cannot be found.")

    def _keep(self, held: _Held) -> _Held:
        self._held[held.first] = held
        self._bytes += held.size
        while self._bytes > CACHE_BYTES and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= oldest.size
        return held


def envelope_of(body: Body) -> Envelope | None:
    """Return where a record goes; None = it does not say so."""
    try:
        return Envelope.of(body.headers)
    except InvalidRecord:
        return None


def encode(
    bodies: Sequence[Body],
    batch: Batch,
    producer_id: int,
    *,
    adds_sent_time: bool,
    causes: dict[int, tuple[Reason, str]],
) -> bytes:
    """Return the batch for a target: always the same for the same round.

    ``causes``: why some records, by offset, are dead letters.
    """
    headers = [_headers(body, adds_sent_time=adds_sent_time, cause=causes.get(body.offset)) for body in bodies]
    return encode_batch(
        [body.key for body in bodies],
        [body.value for body in bodies],
        [due_of(key) for key in batch.keys],
        headers if any(headers) else None,
        BatchMeta(producer_id, batch.epoch, batch.base_sequence),
    )


def _headers(body: Body, *, adds_sent_time: bool, cause: tuple[Reason, str] | None) -> list[Any] | None:
    kept = without(body.headers)
    envelope = envelope_of(body)
    if cause is not None:
        topic, partition = ("", -1) if envelope is None else (envelope.topic, envelope.partition)
        return list(
            dead_headers(
                kept,
                Cause(reason=cause[0], topic=topic, partition=partition, offset=body.offset, message=cause[1]),
            )
        )
    if adds_sent_time and envelope is not None:
        kept.append((SENT_HEADER, str(envelope.sent_ms).encode()))
    return kept or None


def bodies_of(source: Bodies, keys: Sequence[int]) -> list[Body]:
    """Return the records of some keys, in their order; each batch of the log is read once."""
    by_key = {key: source.read(offset_of(key)) for key in sorted(keys, key=offset_of)}
    return [by_key[key] for key in keys]
