"""Laws of the source: cutting loses and repeats nothing, decoding equals a dumb twin, filters never lose a match."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from raylog.base.ids import TopicPartition
from raylog.client.ranges.arrow import KAFKA_SCHEMA, ArrowBuilder
from raylog.client.ranges.offsets import split_ranges
from raylog.client.reading.decode import FetchedBatch
from raylog.spark.reading.filters import narrowing_of
from raylog.storage.batch.header import parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch, encode_kafka_batch

SIZES = st.integers(0, 1000)
RANGES = st.lists(st.tuples(SIZES, SIZES).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=8)
LIMIT = st.none() | st.integers(1, 60)
ROW = st.tuples(
    st.none() | st.binary(max_size=4),
    st.none() | st.binary(max_size=4),
    st.integers(0, 10**12),
    st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
)


@given(ranges=RANGES, min_partitions=LIMIT, max_records=LIMIT)
@settings(max_examples=100, deadline=None)
def test_cutting_ranges_keeps_every_offset_once_and_in_order(
    ranges: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split_ranges(ranges, min_partitions=min_partitions, max_records=max_records)
    for index, (start, end) in enumerate(ranges):
        own = [(first, last) for which, first, last in pieces if which == index]
        assert [offset for piece in own for offset in range(*piece)] == list(range(start, end))
    assert all(first < last for _, first, last in pieces)
    total = sum(end - start for start, end in ranges)
    assert len(pieces) >= min(min_partitions or 0, total)
    assert max_records is None or all(last - first <= max_records for _, first, last in pieces)
    if min_partitions is None and max_records is None:
        assert len(pieces) == sum(start < end for start, end in ranges)


@given(
    batches=st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=1, max_size=5),
    kafkas=st.booleans(),
    base=st.integers(0, 50),
    cut=st.tuples(st.integers(0, 90), st.integers(0, 90)),
    include_headers=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_decoding_equals_a_twin_that_goes_row_by_row(
    batches: list[list[Any]], kafkas: bool, base: int, cut: tuple[int, int], include_headers: bool
) -> None:
    start, end = cut
    schema = KAFKA_SCHEMA if include_headers else KAFKA_SCHEMA.remove(KAFKA_SCHEMA.get_field_index("headers"))
    builder = ArrowBuilder(TopicPartition("t", 7), start, end, schema)
    encode = encode_kafka_batch if kafkas else encode_batch
    expected = []
    offset = base
    for rows in batches:
        keys, values, times, headers = (list(column) for column in zip(*rows, strict=True))
        batch = encode(keys, values, times, headers, BatchMeta(base_offset=offset))
        header = parse_header(batch)
        if header.next_offset > start and header.base_offset < end:
            builder.add(FetchedBatch(memoryview(batch), 0, header))
        for key, value, time_ms, pairs in rows:
            if start <= offset < end:
                row = {"key": key, "value": value, "topic": "t", "partition": 7, "offset": offset, "timestampType": 0}
                if include_headers:
                    row["headers"] = [{"key": name, "value": data} for name, data in pairs] if pairs else None
                expected.append((row, time_ms))
            offset += 1
    found = [
        (row, int(row.pop("timestamp").timestamp() * 1000 + 0.5)) for item in builder.take() for row in item.to_pylist()
    ]
    assert found == expected


COMPARED = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
NUMBER = st.integers(-2, 12)
FILTER: st.SearchStrategy[Filter] = st.one_of(
    st.builds(
        lambda kind, column, value: kind((column,), value), COMPARED, st.sampled_from(["offset", "partition"]), NUMBER
    ),
    st.builds(
        lambda column, values: In((column,), tuple(values)),
        st.sampled_from(["offset", "partition"]),
        st.lists(NUMBER, min_size=1, max_size=3),
    ),
)


def matches(one: Any, row: dict[str, int]) -> bool:
    """What a comparison means, in plain Python."""
    value = row[one.attribute[0]]
    match one:
        case EqualTo():
            return bool(value == one.value)
        case GreaterThan():
            return bool(value > one.value)
        case GreaterThanOrEqual():
            return bool(value >= one.value)
        case LessThan():
            return bool(value < one.value)
        case LessThanOrEqual():
            return bool(value <= one.value)
        case _:
            return value in one.value


@given(filters=st.lists(FILTER, max_size=4), partition=st.integers(0, 10), offset=st.integers(0, 10))
@settings(max_examples=100, deadline=None)
def test_a_row_that_matches_is_never_left_out(filters: list[Filter], partition: int, offset: int) -> None:
    found = narrowing_of(filters)
    kept = found.keeps("t", partition) and found.offset_low <= offset < found.offset_end
    if all(matches(item, {"partition": partition, "offset": offset}) for item in filters):
        assert kept
