"""The columns of a sink: which are taken, and the sentences for wrong ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from raylog.base.errors import InvalidConfig, InvalidRecord
from raylog.client.producer.arrow_columns import header_type
from raylog.spark.writing.columns import check_columns, split

HEADERS = "array<struct<key:string,value:binary>>"


def schema(**columns: str) -> StructType:
    fields = [f'{{"name":"{name}","type":{kind},"nullable":true,"metadata":{{}}}}' for name, kind in columns.items()]
    return StructType.fromJson(__import__("json").loads(f'{{"type":"struct","fields":[{",".join(fields)}]}}'))


PAIR = (
    '{"type":"struct","fields":[{"name":"key","type":"string","nullable":true,"metadata":{}},'
    '{"name":"value","type":"binary","nullable":true,"metadata":{}}]}'
)
ALL = {
    "key": '"string"',
    "value": '"binary"',
    "headers": f'{{"type":"array","elementType":{PAIR},"containsNull":true}}',
    "topic": '"string"',
    "partition": '"integer"',
    "timestamp": '"timestamp"',
}


def test_every_column_of_the_sink_and_those_of_a_read_are_taken() -> None:
    check_columns(schema(**ALL), None)
    check_columns(schema(**ALL, offset='"long"', timestampType='"integer"'), "t")
    check_columns(schema(value='"string"', timestamp='"long"'), "t")


@pytest.mark.parametrize(
    ("columns", "topic", "sentence"),
    [
        ({"key": '"binary"'}, "t", "needs a column 'value' (binary or string), and there is none among 'key'"),
        ({"value": '"integer"'}, "t", "'value' is int; the sink takes binary or string. Cast it."),
        ({**ALL, "partition": '"string"'}, None, "'partition' is string; the sink takes int"),
        ({**ALL, "headers": '"binary"'}, None, f"'headers' is binary; the sink takes {HEADERS}"),
        ({**ALL, "timestamp": '"date"'}, None, "'timestamp' is date; the sink takes timestamp, or bigint"),
        ({"value": '"binary"', "topik": '"string"'}, "t", "'topic'"),
        ({"value": '"binary"'}, None, "give the option 'topic', or a column 'topic' (string)"),
    ],
)
def test_a_wrong_column_is_named_with_what_is_allowed(
    columns: dict[str, str], topic: str | None, sentence: str
) -> None:
    with pytest.raises(InvalidConfig) as found:
        check_columns(schema(**columns), topic)
    assert sentence in found.value.message


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_go_to_the_topics_that_they_name() -> None:
    given = batch(value=["a", "b", "c"], topic=["x", "y", "x"], partition=pa.array([0, None, 2], pa.int32()))
    found = {
        rows.topic: (rows.columns.values.to_pylist(), rows.partitions.to_pylist()) for rows in split(given, None, 7)
    }
    assert found == {"x": (["a", "c"], [0, 2]), "y": (["b"], [None])}
    (only,) = split(given, "z", 7)
    assert (only.topic, only.columns.values.to_pylist()) == ("z", ["a", "b", "c"])


def test_timestamps_become_milliseconds_and_null_is_now() -> None:
    micros = pa.array([1_500_000, None], pa.timestamp("us", "UTC"))
    (rows,) = split(batch(value=["a", "b"], timestamp=micros), "t", 7)
    assert rows.columns.timestamps_ms.to_pylist() == [1500, 7]
    (rows,) = split(batch(value=["a"], timestamp=pa.array([3], pa.int64())), "t", 7)
    assert rows.columns.timestamps_ms.to_pylist() == [3]
    with pytest.raises(InvalidRecord, match="lies before 1970"):
        list(split(batch(value=["a"], timestamp=pa.array([-3], pa.int64())), "t", 7))


def test_a_null_topic_is_refused() -> None:
    with pytest.raises(InvalidRecord, match=r"1 of 2 rows have no topic \(null\)"):
        list(split(batch(value=["a", "b"], topic=["x", None]), None, 7))


def test_headers_of_spark_fit() -> None:
    kind = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
    headers = pa.array([[{"key": "h", "value": b"1"}], None], kind)
    (rows,) = split(batch(value=["a", "b"], headers=headers), "t", 7)
    assert rows.columns.headers.type == header_type()
