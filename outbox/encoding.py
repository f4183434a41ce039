"""Rows as the bytes of a record batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from raylog.client.producer.resumed import Identity, encode
from raylog.client.types import Header
from raylog.core.scheduling.envelope import BY_KEY, SCHEDULED_TOPIC, Envelope
from raylog.outbox.model import OutboxBatch

TXID_HEADER: Final = "raylog-txid"
"""The record header that carries the event's txid."""
_headers = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])


class EventRow(NamedTuple):
    """What a record is made of. Times: milliseconds since 1970. ``target_id``: id of a delayed record's own topic."""

    txid: str
    topic: str
    key: bytes | None
    payload: bytes | None
    headers: bytes | None
    created_ms: int
    due_ms: int | None
    target_id: str | None


def encoded(batch: OutboxBatch, rows: Sequence[EventRow], compression_type: str) -> bytes:
    """Encode a batch; the same rows give the same bytes. Raises ValueError for headers that `add` has not written."""
    keys = [row.key for row in rows]
    is_delayed = batch.where.topic == SCHEDULED_TOPIC
    headers: list[list[Header] | None] = [
        [
            *(_headers.decode(row.headers) if row.headers else ()),
            (TXID_HEADER, row.txid.encode()),
            *([_envelope(row)] if is_delayed else ()),
        ]
        for row in rows
    ]
    return encode(
        Identity(batch.producer_id, batch.producer_epoch, batch.first_sequence),
        None if all(key is None for key in keys) else keys,
        [row.payload for row in rows],
        [(row.due_ms or 0) if is_delayed else max(row.created_ms, row.due_ms or 0) for row in rows],
        headers,
        compression_type,
    )


def _envelope(row: EventRow) -> Header:
    """The header that names a delayed record's own topic; its key decides the partition once it is due."""
    return Envelope(row.topic, row.target_id or "", BY_KEY, row.created_ms).header()
