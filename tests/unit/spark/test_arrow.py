"""Record batches have the very schema that Spark compares them with, and are cut to size."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from raylog.base.ids import TopicPartition
from raylog.client.ranges import strings
from raylog.client.ranges.arrow import KAFKA_SCHEMA, ROWS, ArrowBuilder
from raylog.client.reading.decode import FetchedBatch
from raylog.spark.reading.columns import TYPES, arrow_schema, row_schema
from raylog.spark.reading.options import COLUMNS
from raylog.storage.batch.header import CONTROL_BIT, TIMESTAMP_TYPE_BIT, parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch, encode_kafka_batch

T0 = TopicPartition("t", 0)


def fetched(batch: bytes) -> FetchedBatch:
    return FetchedBatch(memoryview(batch), 0, parse_header(batch))


def make_every_column() -> pa.Table:
    """Record batches of all the ways to make a column: strings of one length and of several, none, and of Kafka."""
    made: list[pa.RecordBatch] = []
    for batch in (
        encode_batch(None, [b"a", b"b"], [1, 2]),
        encode_batch(
            [b"a", b"bb", None], [b"a", b"", b"ccc"], [1, 2, 3], [[("h", b"1"), ("\u00e4", None)], None, None]
        ),
        encode_kafka_batch([b"k", None], [b"a", b"c" * 20], [5, 6], [[("h", b"1")], None]),
    ):
        builder = ArrowBuilder(T0, 0, 10, arrow_schema(row_schema(tuple(TYPES))))
        builder.add(fetched(batch))
        made += builder.take()
    return pa.Table.from_batches(made)


def test_columns_are_the_same_however_they_are_made() -> None:
    table = make_every_column()
    table.validate(full=True)
    assert table.column("key").to_pylist() == [None, None, b"a", b"bb", None, b"k", None]
    assert table.column("value").to_pylist() == [b"a", b"b", b"a", b"", b"ccc", b"a", b"c" * 20]
    assert table.column("partition").to_pylist() == [0] * 7
    assert table.column("topic").to_pylist() == ["t"] * 7
    one = {"key": "h", "value": b"1"}
    assert table.column("headers").to_pylist() == [
        *(None, None),
        *([one, {"key": "\u00e4", "value": None}], None, None),
        *([one], None),
    ]


@pytest.mark.parametrize("columns", [COLUMNS, tuple(TYPES), ("value", "offset")])
def test_the_schema_is_the_one_spark_expects(columns: tuple[str, ...]) -> None:
    builder = ArrowBuilder(T0, 0, 10, arrow_schema(row_schema(columns)))
    builder.add(fetched(encode_batch(None, [b"v"], [1], [[("a", b"1"), ("a", b"2")]])))
    (found,) = builder.take()
    assert to_arrow_schema(row_schema(columns), timezone="UTC").equals(found.schema)
    assert found.schema.field("value").type == pa.binary()
    made = arrow_schema(row_schema(tuple(TYPES)))
    assert (made.names, made.types) == (KAFKA_SCHEMA.names, KAFKA_SCHEMA.types)
    found.validate(full=True)


def test_only_what_a_record_may_lack_is_declared_as_nullable() -> None:
    nullable = {field.name for field in row_schema(tuple(TYPES)) if field.nullable}
    assert nullable == {"key", "value", "headers"}
    for field in make_every_column().schema:
        assert field.nullable == (field.name in nullable)


def test_the_ddl_is_that_of_sparks_kafka_source() -> None:
    assert row_schema(tuple(TYPES)).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_timestamps_that_the_leader_gave_are_marked() -> None:
    builder = ArrowBuilder(T0, 0, 10)
    builder.add(fetched(encode_batch(None, [b"a", b"b"], [1, 2])))
    builder.add(fetched(encode_batch(None, [b"c"], [9], None, BatchMeta(base_offset=2, attributes=TIMESTAMP_TYPE_BIT))))
    (found,) = builder.take()
    assert found.column("timestampType").to_pylist() == [0, 0, 1]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [1_000, 2_000, 9_000]


def test_markers_of_the_broker_are_no_rows() -> None:
    builder = ArrowBuilder(T0, 0, 10)
    builder.add(fetched(encode_batch(None, [b"x"], [1], None, BatchMeta(attributes=CONTROL_BIT))))
    assert list(builder.take()) == []


def test_batches_of_kafka_clients_are_read_too() -> None:
    builder = ArrowBuilder(T0, 1, 3)
    builder.add(
        fetched(encode_kafka_batch([b"k", None, b"m"], [b"a", None, b"c"], [5, 6, 7], [[("h", b"1")], None, []]))
    )
    (found,) = builder.take()
    assert [(row["key"], row["value"], row["headers"]) for row in found.to_pylist()] == [
        (None, None, None),
        (b"m", b"c", None),
    ]


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (ROWS, [ROWS]),
        (ROWS + 1, [ROWS + 1]),
        (2 * ROWS - 1, [2 * ROWS - 1]),
        (2 * ROWS + 1, [ROWS, ROWS + 1]),
    ],
)
def test_a_builder_is_full_by_rows_and_gives_no_small_rest(rows: int, sizes: list[int]) -> None:
    builder = ArrowBuilder(T0, 0, 10**9)
    builder.add(fetched(encode_batch(None, [b""] * rows, [0] * rows)))
    assert builder.is_full
    found = list(builder.take())
    assert [batch.num_rows for batch in found] == sizes
    assert pa.Table.from_batches(found).column("offset").to_pylist() == list(range(rows))
    assert not builder.is_full


def test_batches_with_and_without_keys_are_put_together_in_order() -> None:
    """Of one length, of several, and none: each is made in a way of its own."""
    builder = ArrowBuilder(T0, 0, 10**9)
    batches: list[list[bytes | None] | None] = [
        None,
        None,
        [b"a", b"b"],
        [b"c", b"d"],
        [b"e", b"long"],
        None,
        [b"f", None],
        None,
        None,
    ]
    for keys in batches:
        builder.add(fetched(encode_batch(keys, [b"v", b"w"], [0, 1])))
    (found,) = builder.take()
    assert found.column("key").to_pylist() == [key for keys in batches for key in keys or (None, None)]
    found.validate(full=True)


def test_a_builder_is_full_by_bytes() -> None:
    builder = ArrowBuilder(T0, 0, 10**9)
    builder.add(fetched(encode_batch(None, [b"x" * (9 << 20)], [0])))
    assert builder.is_full


def test_one_large_value_beside_what_is_kept_for_many_rows() -> None:
    """The places of 16,384 such values would not fit into 32 bits."""
    builder = ArrowBuilder(T0, 0, 10**9)
    builder.add(fetched(encode_batch(None, [b"x" * 200_000] * 3, [0, 1, 2])))
    (found,) = builder.take()
    found.validate(full=True)
    assert found.column("value").to_pylist() == [b"x" * 200_000] * 3


def test_a_batch_of_very_many_small_records_leaves_nothing_behind() -> None:
    kept = strings._equal_ends.cache_info().misses, strings._nulls.cache_info().misses
    rows = strings._KEPT_ROWS_MAX + 1
    builder = ArrowBuilder(T0, 0, 10**9)
    builder.add(fetched(encode_batch(None, [b"xyz"] * rows, [0] * rows)))
    table = pa.Table.from_batches(list(builder.take()))
    assert (table["value"].to_pylist(), table["key"].null_count) == ([b"xyz"] * rows, rows)
    assert kept == (strings._equal_ends.cache_info().misses, strings._nulls.cache_info().misses)
