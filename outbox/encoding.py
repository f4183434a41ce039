"""Rows as the bytes of a record batch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from raylog.client.producer.resumed import Identity, encode
from raylog.client.types import Header
from raylog.outbox.model import OutboxBatch

TXID_HEADER: Final = "raylog-txid"
"""The header of a record that has the event's txid."""
_headers = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])


class EventRow(NamedTuple):
    """What a record is made of."""

    txid: str
    key: bytes | None
    payload: bytes | None
    headers: bytes | None
    timestamp_ms: int


def encoded(batch: OutboxBatch, rows: Sequence[EventRow], compression_type: str) -> bytes:
    """The batch, the same bytes for the same rows. Raises ValueError for headers that `add` has not written."""
    keys = [row.key for row in rows]
    headers: list[list[Header] | None] = [
        [*(_headers.decode(row.headers) if row.headers else ()), (TXID_HEADER, row.txid.encode())] for row in rows
    ]
    return encode(
        Identity(batch.producer_id, batch.producer_epoch, batch.first_sequence),
        None if all(key is None for key in keys) else keys,
        [row.payload for row in rows],
        [row.timestamp_ms for row in rows],
        headers,
        compression_type,
    )
