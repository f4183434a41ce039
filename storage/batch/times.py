"""Whether the first bytes of a batch show that none of its records is within a span of time. Pure.

A header has the largest timestamp of its records, but not the smallest: timestamps may descend within a batch. The
column of timestamps is the first of an uncompressed body of magic 77, a hundredth of the bytes of small records. Used
by readers of files on their machine, and by leaders for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raylog.storage.batch.grids import NIL, array_at
from raylog.storage.batch.header import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    MAGIC_COLUMNS,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)

_BEFORE_DELTAS = 6
"""Most bytes of the two array heads at the start of a body."""


class TimesFound(NamedTuple):
    """How far a search through batches has come."""

    next_offset: int
    """All records from where the search began up to here are outside the span."""
    is_found: bool
    """Whether the batch at `next_offset` may hold a record within; False: the search ended, or has looked at enough."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """A span of time in milliseconds since 1970, the end exclusive; None = no bound."""

    low_ms: int | None = None
    end_ms: int | None = None

    def bytes_to_show(self, header: BatchHeader) -> int:
        """How many bytes of the body `exclude` needs; 0 where the header is enough, or nothing helps."""
        if self._is_too_old(header) or self.end_ms is None or header.base_timestamp < self.end_ms:
            return 0
        return 0 if _base_is_unknown(header) else _BEFORE_DELTAS + header.record_count

    def exclude(self, header: BatchHeader, body: bytes) -> bool:
        """Whether no record can be within the span; `body`: its first `bytes_to_show` bytes."""
        if self._is_too_old(header):
            return True
        if self.end_ms is None:
            return False
        if header.attributes & TIMESTAMP_TYPE_BIT:  # the leader's time, of all records
            return header.max_timestamp >= self.end_ms
        if header.base_timestamp < self.end_ms or _base_is_unknown(header):
            return False
        return _none_is_older_than_base(body, header.record_count)

    def _is_too_old(self, header: BatchHeader) -> bool:
        return self.low_ms is not None and header.max_timestamp < self.low_ms


def _base_is_unknown(header: BatchHeader) -> bool:
    """Whether the first bytes do not show how old records are: in compressed bodies, Kafka's, and cleaned ones."""
    not_plain = header.attributes & (COMPRESSION_MASK | DELETE_HORIZON_BIT | TIMESTAMP_TYPE_BIT)
    return header.magic != MAGIC_COLUMNS or bool(not_plain)


def _none_is_older_than_base(body: bytes, rows: int) -> bool:
    """Whether all timestamps are the base or up to 127 milliseconds later: each delta is one byte then, below 128."""
    try:
        if body[0] & 0xF0 != 0x90:  # of four columns, or five
            return False
        if body[1] == NIL:
            return True
        found = array_at(body, 1)
    except IndexError:
        return False
    if found is None or found[0] != rows:
        return False
    deltas = body[found[1] : found[1] + rows]
    return len(deltas) == rows and deltas.isascii()
