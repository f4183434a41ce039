"""Batches of the metadata log, each with the span (offsets and epoch) that the quorum needs. Pure."""

from __future__ import annotations

from raylog.core.quorum import Span
from raylog.storage.batch.header import iter_headers

Batch = tuple[Span, bytes]


def split(payload: bytes) -> list[Batch]:
    """Return the batches of a read, each with its span."""
    return [
        (
            Span(header.base_offset, header.next_offset, header.partition_leader_epoch),
            payload[position : position + header.size],
        )
        for position, header in iter_headers(payload)
    ]
