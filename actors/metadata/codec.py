"""Encodes and decodes metadata records: one batch per decision, one record per metadata record (msgpack)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from raylog.actors.clock import wall_ms
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord, record_from_wire
from raylog.core.quorum import Span
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import decode_batch, encode_batch

Batch = tuple[Span, bytes]
"""A batch with its offsets and epoch, which the quorum needs."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encoded(records: Sequence[MetadataRecord], now_ms: int | None = None) -> bytes:
    """Return the records as one batch, without offset and epoch. ``now_ms``: its timestamp; None: the clock's time."""
    values: list[bytes | None] = [_encoder.encode(record.to_wire()) for record in records]
    return encode_batch(None, values, [wall_ms() if now_ms is None else now_ms] * len(values))


def decoded(payload: bytes) -> Iterator[MetadataRecord]:
    """Yield the records of batches in order. Raises ValueError for a record that a newer release wrote."""
    for position, header in iter_headers(payload):
        for value in decode_batch(payload, position, header).values or []:
            yield record_from_wire(_decoder.decode(value or b""))


def image_of(payloads: Iterable[bytes], image: MetadataImage | None = None) -> MetadataImage:
    """Return the image after all records of the batches, applied to ``image`` or to an empty one."""
    image = MetadataImage() if image is None else image
    for payload in payloads:
        for record in decoded(payload):
            image.apply(record)
    return image


def split(payload: bytes) -> list[Batch]:
    """Return the batches of a read, each with its span."""
    return [
        (
            Span(header.base_offset, header.next_offset, header.partition_leader_epoch),
            payload[position : position + header.size],
        )
        for position, header in iter_headers(payload)
    ]
