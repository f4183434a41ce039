"""Columns as keys, values, headers, times and partitions of records; and the sentences for what cannot be one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from raylog.base.errors import InvalidConfig, InvalidRecord
from raylog.data.serializing import Fields, Records, check_columns, check_schema, records_of

NOW_MS = 1_700_000_000_000


def records(columns: dict[str, Any], **given: Any) -> Records:
    return records_of(pa.table(columns), Fields(**given), NOW_MS)


def test_a_whole_row_becomes_json() -> None:
    found = records({"n": [1, None], "when": [datetime(2026, 1, 2, tzinfo=UTC)] * 2}, key="n")
    assert found.columns.values.to_pylist()[0] == b'{"n":1,"when":"2026-01-02T00:00:00Z"}'
    assert found.columns.keys.to_pylist() == [b"1", None]
    assert (found.columns.headers, found.columns.timestamps_ms, found.partitions) == (None, None, None)


@pytest.mark.parametrize(
    ("column", "serializer", "expected"),
    [
        (pa.array([b"a", None]), None, [b"a", None]),
        (pa.array(["a", None]), None, [b"a", None]),
        (pa.array(["a"], pa.large_string()), None, [b"a"]),
        (pa.array(["a"]).dictionary_encode(), None, [b"a"]),
        (pa.array(["a"]), "json", [b'"a"']),
        (pa.array([1, 2]), "string", [b"1", b"2"]),
        (pa.array([1.5]), "string", [b"1.5"]),
        (pa.array([[1, 2], None]), None, [b"[1,2]", None]),
        (pa.array([], pa.string()), None, []),
    ],
)
def test_a_column_becomes_values(column: Any, serializer: str | None, expected: list[bytes | None]) -> None:
    assert records({"v": column}, value="v", value_serializer=serializer).columns.values.to_pylist() == expected


def test_a_block_without_any_value_in_a_column_is_written() -> None:
    names = {"value": "v", "key": "k", "headers": "h", "timestamp": "t", "partition": "p"}
    found = records({name: pa.nulls(2) for name in names.values()}, **names)
    assert [found.columns.values.to_pylist(), found.columns.keys.to_pylist()] == [[None, None]] * 2
    assert [found.columns.headers.to_pylist(), found.partitions.to_pylist()] == [[None, None]] * 2
    assert found.columns.timestamps_ms.to_pylist() == [NOW_MS] * 2


def test_types_are_checked_before_there_are_records() -> None:
    schema = pa.schema([("id", pa.int64()), ("body", pa.binary())])
    check_schema(Fields(value="body", key="id"), schema)
    with pytest.raises(InvalidRecord, match="'body' holds bytes"):
        check_schema(Fields(), schema)
    with pytest.raises(InvalidConfig, match="value_field: Unknown column 'bodi'; did you mean 'body'"):
        check_schema(Fields(value="bodi"), schema)


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.binary()), pa.map_(pa.string(), pa.string())])
def test_headers_from_maps_keep_keys_that_come_twice(kind: Any) -> None:
    column = pa.array([[("h", "1"), ("h", "2")], [], [("i", None)]], kind)
    found = records({"v": ["a", "b"], "h": column.slice(1)}, value="v", headers="h").columns.headers
    assert found.to_pylist() == [[], [{"key": "i", "value": None}]]
    found = records({"v": ["a", "b"], "h": column.slice(0, 2)}, value="v", headers="h").columns.headers
    assert found.to_pylist() == [[{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}], []]


def test_times_are_milliseconds_and_null_is_now() -> None:
    moments = pa.array([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    found = records({"v": ["a", "b"], "t": moments}, value="v", timestamp="t").columns.timestamps_ms
    assert found.to_pylist() == [1000, NOW_MS]
    assert records({"v": ["a"], "t": [5]}, value="v", timestamp="t").columns.timestamps_ms.to_pylist() == [5]


@pytest.mark.parametrize(
    ("columns", "given", "sentence"),
    [
        ({"key": [b"x"], "n": [1]}, {}, "'key' holds bytes, which JSON cannot: give value_field='key'"),
        ({"n": [1]}, {"value": "n", "value_serializer": "bytes"}, "'n' is int64, and 'bytes' takes binary or string"),
        ({"n": [1]}, {"headers": "n"}, "'n' is int64; headers are a map of text to bytes"),
        ({"n": ["x"]}, {"timestamp": "n"}, "'n' is string, and not a timestamp"),
        ({"n": [-5]}, {"timestamp": "n"}, "a time before 1970"),
        ({"n": ["x"]}, {"partition": "n"}, "'n' is string, and not a whole number"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(columns: Any, given: Any, sentence: str) -> None:
    with pytest.raises(InvalidRecord, match=sentence):
        records(columns, **given)


def test_an_unknown_column_suggests_the_right_one() -> None:
    with pytest.raises(InvalidConfig, match="key_field: Unknown column 'tailnun'; did you mean 'tailnum'"):
        check_columns(Fields(key="tailnun"), ["tailnum", "dest"])


def test_a_row_can_only_be_json() -> None:
    with pytest.raises(InvalidConfig, match="needs value_field"):
        records({"n": [1]}, value_serializer="string")
