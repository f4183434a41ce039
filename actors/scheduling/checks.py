"""What is checked of records before they are scheduled: due times, targets, names. Pure."""

from __future__ import annotations

from typing import Final

from raylog.core.errors import DelayTooLong, InvalidRecord
from raylog.core.scheduling.envelope import ID_HEADER, SCHEDULE_ID_MAX, Envelope, HalfName, Header
from raylog.core.scheduling.keys import HELD_MS, NAMED_MS
from raylog.storage.batch.header import BatchHeader
from raylog.storage.batch.records import decode_batch

CHECK_AFTER_MAX_MS: Final = 86_400_000


def check_batch(payload: bytes, position: int, header: BatchHeader, latest_ms: int) -> int:
    """Return how many records of a batch are parts of half messages. Raises InvalidRecord, DelayTooLong.

    ``latest_ms``: the latest due time. A batch without half messages and schedule ids is not opened.
    """
    if header.producer_id < 0:
        raise InvalidRecord("Delayed records need an idempotent producer: enable_idempotence=True.")
    if header.is_transactional:
        raise InvalidRecord("A delayed record cannot be part of a transaction; send it before or after.")
    if header.max_timestamp < NAMED_MS:
        _check_due(header.max_timestamp, latest_ms)
        return 0
    columns = decode_batch(payload, position, header)
    held = 0
    for index, timestamp_ms in enumerate(columns.timestamps):
        headers = (None if columns.headers is None else columns.headers[index]) or ()
        if timestamp_ms >= HELD_MS:
            name = HalfName.of(headers)
            if name is None or name.check_after_ms > CHECK_AFTER_MAX_MS or timestamp_ms - HELD_MS > latest_ms:
                raise InvalidRecord("A record of a half message does not name it, or is checked later than in a day.")
            held += 1
        elif timestamp_ms >= NAMED_MS:
            _check_due(timestamp_ms - NAMED_MS, latest_ms)
            _check_named(headers)
        else:
            _check_due(timestamp_ms, latest_ms)
    return held


def _check_due(due_ms: int, latest_ms: int) -> None:
    if due_ms > latest_ms:
        raise DelayTooLong(f"A record is due at {due_ms}, more than ten years from now.")


def _check_named(headers: list[Header] | tuple[Header, ...]) -> None:
    Envelope.of(headers)  # without target there is no name
    ids = [value for name, value in headers if name == ID_HEADER]
    if len(ids) != 1 or not ids[0] or len(ids[0]) > SCHEDULE_ID_MAX:
        raise InvalidRecord(f"A record with a schedule id has one header {ID_HEADER} of 1 to {SCHEDULE_ID_MAX} bytes.")
