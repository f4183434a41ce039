"""However batches of the log are cut and laid out, the record batches hold the same records in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.client.ranges import arrow
from raylog.client.ranges.fillers import joined
from raylog.client.reading.decode import FetchedBatch
from raylog.storage.batch.header import parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch, encode_kafka_batch

Strings = list[bytes | None] | None


def strings(rows: int) -> st.SearchStrategy[Strings]:
    """Of one length, of several, some null, or none."""
    same = st.integers(0, 300).map(lambda width: [b"v" * width] * rows)
    mixed = st.lists(st.none() | st.binary(max_size=40), min_size=rows, max_size=rows)
    return st.one_of(st.none(), same, mixed)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[Strings, list[bytes | None], list[int], bool]]:
    """Keys, values, timestamps of each batch, and whether a Kafka client wrote it."""
    found = []
    for rows in draw(st.lists(st.integers(1, 40), min_size=1, max_size=12)):
        moments = st.lists(st.integers(0, 2**40) | st.integers(0, 300), min_size=rows, max_size=rows)
        values = draw(strings(rows)) or [None] * rows
        found.append((draw(strings(rows)), values, draw(moments), draw(st.booleans())))
    return found


@settings(deadline=None)
@given(logs(), st.integers(4, 64), st.integers(200, 4_000), st.data())
def test_record_batches_hold_the_records_of_the_range(
    log: list[tuple[Strings, list[bytes | None], list[int], bool]], rows_max: int, bytes_max: int, data: st.DataObject
) -> None:
    count = sum(len(values) for _, values, _, _ in log)
    start = data.draw(st.integers(0, count))
    end = data.draw(st.integers(start, count))
    with patch.object(arrow, "ROWS", rows_max), patch.object(arrow, "BYTES_MAX", bytes_max):
        builder = arrow.ArrowBuilder(TopicPartition("t", 0), start, end)
        made: list[pa.RecordBatch] = []
        offset = 0
        for keys, values, moments, is_kafkas in log:
            encode = encode_kafka_batch if is_kafkas else encode_batch
            batch = encode(keys, values, moments, None, BatchMeta(base_offset=offset))
            offset += len(values)
            builder.add(FetchedBatch(batch, 0, parse_header(batch)))
            if builder.is_full:
                made += builder.take()
        made += builder.take()
    table = pa.Table.from_batches(made, schema=arrow.KAFKA_SCHEMA)
    table.validate(full=True)
    rows = [
        (key, value, moment * 1000)
        for keys, values, moments, _ in log
        for key, value, moment in zip(keys or [None] * len(values), values, moments, strict=True)
    ]
    columns = (table["key"], table["value"], table["timestamp"].cast(pa.int64()))
    assert list(zip(*(column.to_pylist() for column in columns), strict=True)) == rows[start:end]
    assert table["offset"].to_pylist() == list(range(start, end))


@given(st.lists(st.one_of(st.tuples(st.integers(0, 9), st.integers(0, 5)), st.lists(st.integers(0, 99))), max_size=20))
def test_ranges_are_joined_without_another_order(parts: Sequence[tuple[int, int] | list[int]]) -> None:
    given_ = [range(part[0], part[0] + part[1]) if isinstance(part, tuple) else part for part in parts]
    found = list(joined(given_))
    assert [offset for part in found for offset in part] == [offset for part in given_ for offset in part]
    pairs = [(before, after) for before, after in pairwise(found) if isinstance(before, range)]
    assert not any(isinstance(after, range) and before.stop == after.start for before, after in pairs)
