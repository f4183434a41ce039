"""Checks records before they are scheduled: that they can be decoded, their due times, targets and names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from raylog.base.errors import DelayTooLong, InvalidRecord
from raylog.core.scheduling.envelope import ID_HEADER, SCHEDULE_ID_MAX, Envelope, HalfId, HalfName, Header, shape_of
from raylog.core.scheduling.keys import HELD_MS, NAMED_MS
from raylog.storage.batch.header import BatchHeader
from raylog.storage.batch.records import decode_batch
from raylog.storage.errors import CorruptBatch

CHECK_AFTER_MAX_MS: Final = 86_400_000


class Checked(NamedTuple):
    """The contents of a batch that the caller checks."""

    halves: Sequence[HalfId]
    """The half message of each record that belongs to one."""
    targets: frozenset[tuple[str, str]]
    """Names and ids of the records' target topics."""


def check_batch(payload: bytes, position: int, header: BatchHeader, latest_ms: int) -> Checked:
    """Check a batch, and return what its records refer to. Raises InvalidRecord, DelayTooLong.

    ``latest_ms``: the latest due time that is allowed. A batch that cannot be decoded must be refused here: after the
    append, it could be neither delivered nor returned to its sender.
    """
    if header.producer_id < 0:
        raise InvalidRecord("Delayed records need an idempotent producer: enable_idempotence=True.")
    if header.is_transactional:
        raise InvalidRecord("A delayed record cannot be part of a transaction; send it before or after.")
    try:
        columns = decode_batch(payload, position, header, verify=False)  # `inspect` has checked the CRC
    except CorruptBatch as error:
        raise InvalidRecord(f"The batch of delayed records cannot be opened: {error.reason}.") from error
    if max(columns.timestamps) != header.max_timestamp:
        raise InvalidRecord("The header of a batch of delayed records states another latest time than its records.")
    halves: list[HalfId] = []
    targets: dict[bytes, Envelope] = {}
    all_headers = columns.headers or [None] * header.record_count
    for timestamp_ms, headers in zip(columns.timestamps, all_headers, strict=True):
        target = shape_of(headers)
        if target is None or target not in targets:
            targets[target or b""] = Envelope.of(headers)
        if timestamp_ms >= HELD_MS:
            halves.append(_checked_half(headers or (), timestamp_ms, latest_ms))
        elif timestamp_ms >= NAMED_MS:
            _check_due(timestamp_ms - NAMED_MS, latest_ms)
            _check_named(headers or ())
        else:
            _check_due(timestamp_ms, latest_ms)
    for envelope in targets.values():
        if envelope.is_internal:
            raise InvalidRecord(f"{envelope.topic} is Raylog's own topic: no delayed record can go there.")
    return Checked(halves, frozenset((envelope.topic, envelope.topic_id) for envelope in targets.values()))


def _check_due(due_ms: int, latest_ms: int) -> None:
    if due_ms > latest_ms:
        raise DelayTooLong(f"A record is due at {due_ms}, more than ten years from now.")


def _checked_half(headers: Sequence[Header], timestamp_ms: int, latest_ms: int) -> HalfId:
    name = HalfName.of(headers)
    if name is None or name.check_after_ms > CHECK_AFTER_MAX_MS or timestamp_ms - HELD_MS > latest_ms:
        raise InvalidRecord("A record of a half message does not name it, or is checked later than in a day.")
    return name.id


def _check_named(headers: Sequence[Header]) -> None:
    ids = [value for name, value in headers if name == ID_HEADER]
    if len(ids) != 1 or not ids[0] or len(ids[0]) > SCHEDULE_ID_MAX:
        raise InvalidRecord(f"A record with a schedule id has one header {ID_HEADER} of 1 to {SCHEDULE_ID_MAX} bytes.")
