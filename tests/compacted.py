"""Whether two replicas of a compacted partition hold equal records: not equal bytes, as each cleans its own log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.marker import decode_marker, is_marker
from raylog.storage.batch.records import decode_batch


class Row(NamedTuple):
    """A record as readers get it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Any


def rows_of(data: bytes) -> dict[int, Row]:
    """The records of these batches, by their offsets, without those of aborted transactions: cleaners remove these."""
    found: dict[int, Row] = {}
    opened: defaultdict[int, list[int]] = defaultdict(list)
    for position, header in iter_headers(data):
        if is_marker(header):
            offsets = opened.pop(header.producer_id, [])
            for offset in () if decode_marker(data, position, header).committed else offsets:
                del found[offset]
        if header.is_control:
            continue
        columns = decode_batch(data, position, header)
        nothing = [None] * len(columns.offsets)
        rows = map(
            Row, columns.keys or nothing, columns.values or nothing, columns.timestamps, columns.headers or nothing
        )
        found.update(zip(columns.offsets, rows, strict=True))
        if header.is_transactional:
            opened[header.producer_id] += columns.offsets
    return found


def difference(one: dict[int, Row], other: dict[int, Row], removals: Mapping[bytes | None, float]) -> str:
    """Return how they differ beyond what cleaners may do; empty = they do not.

    A record that both have is the same. One that is missing on a side is followed by a later one of its key, or has no
    value; and where a key's removal is missing, so are all earlier records of the key. `removals`: keys of which one
    may lack the records below these offsets.
    """
    both = sorted({*one, *other})
    last = {(one.get(offset) or other[offset]).key: offset for offset in both}
    for offset in both:
        here, there = one.get(offset), other.get(offset)
        if here is not None and there is not None:
            if here != there:
                return f"at {offset} one has {here}, and the other {there}"
            continue
        row = here or there
        assert row is not None
        if offset <= removals.get(row.key, -1):
            continue
        if row.key is None or (last[row.key] == offset and row.value is not None):
            return f"{row} at {offset} is there on one side alone, and is the last of its key"
        lacking = one if here is None else other
        if last[row.key] == offset and any(left.key == row.key for left in lacking.values()):
            return f"the removal of {row.key!r} at {offset} is missing on one side, where the key still is"
    return ""
