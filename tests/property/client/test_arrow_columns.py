"""Encoding whole Arrow columns gives the batches that encoding their records one by one gives."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.client.producer.arrow_columns import (
    ArrowColumns,
    bodies_of,
    by_partition,
    hashes_of_keys,
    header_type,
    partitions_of,
)
from raylog.client.producer.batch import EncodedBody
from raylog.client.producer.partitioner import hash_of_key, partition_for_key
from raylog.client.producer.sizes import RECORD_OVERHEAD_BYTES, LargestRecord, headers_size
from raylog.storage.batch.header import MAGIC_COLUMNS, PLAIN, header_before, parse_header
from raylog.storage.batch.records import decode_batch

content = st.none() | st.binary(max_size=300)
fixed = st.integers(0, 40).flatmap(lambda size: st.binary(min_size=size, max_size=size))
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)


@given(st.lists(st.binary(max_size=80) | st.binary(min_size=250, max_size=270), max_size=40))
def test_hashes_of_a_column_are_those_of_each_key(keys: list[bytes]) -> None:
    lengths = np.array([len(key) for key in keys], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(keys), dtype=np.uint8)
    assert hashes_of_keys(data, starts, lengths).tolist() == [hash_of_key(key) for key in keys]


def records_of(body: EncodedBody) -> list[tuple[object, ...]]:
    """A body's records as a consumer decodes them: key, value, timestamp, headers."""
    header = header_before(
        body.body,
        magic=MAGIC_COLUMNS,
        count=body.records,
        first_timestamp=body.first_ms,
        max_timestamp=body.last_ms,
        compression=0,
        meta=PLAIN,
    )
    batch = header + body.body
    part = decode_batch(batch, 0, parse_header(batch))
    assert body.last_ms == max(part.timestamps)
    nulls = [None] * body.records
    return list(zip(part.keys or nulls, part.values or nulls, part.timestamps, part.headers or nulls, strict=True))


@settings(deadline=None)
@given(st.data())
def test_columns_are_stored_as_their_records(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 60))
    of_rows: Any = {"min_size": rows, "max_size": rows}
    one = data.draw(fixed)
    values = data.draw(st.lists(content, **of_rows) | st.just([one] * rows))
    keys = data.draw(st.none() | st.lists(content, **of_rows))
    moments = data.draw(st.none() | st.lists(st.integers(0, 2**48) | st.integers(0, 130), **of_rows))
    tags = data.draw(st.none() | st.lists(headers, **of_rows))
    limit = data.draw(st.integers(1, 4000))
    lead = data.draw(st.integers(0, 3))

    def column(entries: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array([*entries[:1] * lead, *entries], kind).slice(lead)  # an array that begins inside its buffers

    columns = ArrowColumns(
        column(list(values), pa.binary()),
        None if keys is None else column(list(keys), pa.binary()),
        None
        if tags is None
        else column([row and [{"key": name, "value": value} for name, value in row] for row in tags], header_type()),
        None if moments is None else column(list(moments), pa.int64()),
    )
    largest = LargestRecord("t", 2**20, 2**20, is_compressed=False)
    bodies = list(bodies_of(columns, limit=limit, largest=largest, compression=0, now_ms=7))
    assert all(body.records == 1 or body.size <= limit for body in bodies)
    tagged = [row or None for row in tags or [None] * rows]
    expected = list(zip(keys or [None] * rows, values, moments or [7] * rows, tagged, strict=True))
    assert [record for body in bodies for record in records_of(body)] == expected
    counted = sum(
        RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + headers_size(row or [])
        for key, value, _, row in expected
    )
    assert sum(body.size for body in bodies) == counted


@settings(deadline=None)
@given(st.lists(st.tuples(content, st.none() | st.integers(0, 6)), max_size=50))
def test_rows_are_split_by_partition_in_their_order(rows: list[tuple[bytes | None, int | None]]) -> None:
    keys = pa.array([key for key, _ in rows], pa.binary())
    chosen = partitions_of(keys, pa.array([number for _, number in rows], pa.int32()), len(rows), 7)
    expected: dict[int, list[bytes]] = {}
    for place, (key, number) in enumerate(rows):
        partition = number if number is not None else -1 if key is None else partition_for_key(key, 7)
        expected.setdefault(partition, []).append(b"%d" % place)
    columns = ArrowColumns(pa.array([b"%d" % place for place in range(len(rows))], pa.binary()))
    assert {number: part.values.to_pylist() for number, part in by_partition(columns, chosen)} == expected
