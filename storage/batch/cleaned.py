"""Batches as the log cleaner leaves them: fewer records, at the offsets that they had.

A log has no gaps between its batches, cleaned or not: each begins at the offset where the one before ends. A batch that
keeps some of its records keeps its range of offsets, and lists the offsets of its records. Batches that keep none are
replaced by a *filler*: a control batch without records over their whole range, which every reader skips. So every check
for gaps in a log works on cleaned logs too (docs/adr/0045). Called by `storage/cleaner`, and by the log for the start
of a filler. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress as select
from typing import Final, TypeVar

from raylog.storage.batch.compression import compress
from raylog.storage.batch.header import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    MAGIC_COLUMNS,
    MAGIC_KAFKA,
    BatchHeader,
    with_body,
)
from raylog.storage.batch.records import Columns, column_body

T = TypeVar("T")
FILLER_TIMESTAMP: Final = -1
"""Kafka's value for no timestamp: a filler has no record that could be old or young."""


def is_filler(header: BatchHeader) -> bool:
    """Whether a batch is a filler: it only fills a range of offsets."""
    return header.record_count == 0 and header.producer_id < 0


def is_cleaned(header: BatchHeader) -> bool:
    """Whether records were removed from the batch's range: a producer leaves no offset without a record."""
    return header.record_count != header.last_offset_delta + 1


def filler(base_offset: int, next_offset: int, leader_epoch: int) -> bytes:
    """A batch without records, from `base_offset` up to `next_offset`, all of one leader epoch."""
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC_COLUMNS,
        crc=0,
        attributes=CONTROL_BIT,
        last_offset_delta=next_offset - base_offset - 1,
        base_timestamp=FILLER_TIMESTAMP,
        max_timestamp=FILLER_TIMESTAMP,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )
    return with_body(header, b"")


def emptied(header: BatchHeader) -> bytes:
    """The batch without its records: it still states a producer's epoch and last sequence, as Kafka's cleaner does."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT) | CONTROL_BIT
    return with_body(
        header._replace(
            attributes=attributes, base_timestamp=FILLER_TIMESTAMP, max_timestamp=FILLER_TIMESTAMP, record_count=0
        ),
        b"",
    )


def thinned(header: BatchHeader, columns: Columns, chosen: Sequence[int], horizon_ms: int | None) -> bytes:
    """The batch with the records for which `chosen` is true, at least one, at their offsets.

    `horizon_ms`: from when its tombstones may be removed, in milliseconds since 1970; None = it has none.
    """
    deltas = [offset - header.base_offset for offset in select(columns.offsets, chosen)]
    moments = list(select(columns.timestamps, chosen))
    keys, values, pairs = _of(columns.keys, chosen), _of(columns.values, chosen), _of(columns.headers, chosen)
    base = moments[0] if horizon_ms is None else horizon_ms
    gaps = None if len(deltas) == header.last_offset_delta + 1 else deltas
    codec = header.attributes & COMPRESSION_MASK
    if header.magic == MAGIC_KAFKA:
        from raylog.storage.batch.kafka_rows import encode_records  # only logs that Kafka clients write to need it

        body = encode_records(keys, values, moments, pairs, base_timestamp=base, offset_deltas=gaps)
        body = compress(codec, body) if codec else body
    else:
        ages = None if moments.count(base) == len(moments) else [moment - base for moment in moments]
        body = column_body(ages, keys, values, pairs, codec, None, gaps)
    attributes = header.attributes & ~DELETE_HORIZON_BIT | (0 if horizon_ms is None else DELETE_HORIZON_BIT)
    changed = header._replace(
        attributes=attributes, base_timestamp=base, max_timestamp=max(moments), record_count=len(deltas)
    )
    return with_body(changed, body) + body


def _of(column: list[T] | None, chosen: Sequence[int]) -> list[T] | None:
    return None if column is None else list(select(column, chosen))


def horizon_of(header: BatchHeader) -> int | None:
    """From when the batch's tombstones, or a marker, may be removed, in milliseconds since 1970; None = unknown yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None
