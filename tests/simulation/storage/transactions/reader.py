"""A reader of committed records, as Kafka's consumers are: it gets whole batches, and skips what was aborted."""

from __future__ import annotations

from typing import NamedTuple

from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.marker import decode_marker, is_marker
from raylog.storage.batch.records import decode_batch
from raylog.storage.log.partition_log import PartitionLog


class Row(NamedTuple):
    """A record's offset, key and value."""

    offset: int
    key: bytes | None
    value: bytes | None


def committed_rows(log: PartitionLog, start: int, upper: int, max_bytes: int) -> list[Row]:
    """Every record that such a reader sees from `start` up to the last stable offset `upper`, fetch by fetch."""
    found: list[Row] = []
    offset = start
    while offset < upper:
        data = log.read(offset, max_bytes, upper)
        if not data:
            break
        end = [header for _, header in iter_headers(data)][-1].next_offset
        found += [row for row in _rows(data, log.aborted_transactions(offset, end)) if row.offset >= offset]
        offset = end
    return found


def _rows(data: bytes, aborted: list[tuple[int, int]]) -> list[Row]:
    waiting, skipped, found = list(aborted), set[int](), list[Row]()
    for position, header in iter_headers(data):
        while waiting and waiting[0][1] <= header.last_offset:
            skipped.add(waiting.pop(0)[0])
        if header.is_control:
            if is_marker(header) and not decode_marker(data, position, header).committed:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            columns = decode_batch(data, position, header)
            nothing = [None] * len(columns.offsets)
            found += map(Row, columns.offsets, columns.keys or nothing, columns.values or nothing)
    return found
