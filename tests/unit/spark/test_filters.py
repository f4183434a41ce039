"""Which comparisons narrow what is read, and that all go back to Spark."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from raylog.client.ranges.narrowing import Narrowing
from raylog.spark.reading.filters import EPOCH, narrowing_of
from raylog.spark.reading.options import parse_options
from raylog.storage.batch.times import TimeBounds
from tests.unit.spark.support import reader_of

HALF_PAST = EPOCH + timedelta(microseconds=1_500)  # one and a half milliseconds


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (EqualTo(("partition",), 3), Narrowing(partitions=frozenset({3}))),
        (In(("partition",), (1, 2)), Narrowing(partitions=frozenset({1, 2}))),
        (GreaterThan(("partition",), 1), Narrowing(partition_low=2)),
        (EqualTo(("topic",), "a"), Narrowing(topics=frozenset({"a"}))),
        (EqualTo(("offset",), 5), Narrowing(offset_low=5, offset_end=6)),
        (In(("offset",), (7, 5)), Narrowing(offset_low=5, offset_end=8)),
        (GreaterThan(("offset",), 5), Narrowing(offset_low=6)),
        (GreaterThanOrEqual(("offset",), 5), Narrowing(offset_low=5)),
        (LessThan(("offset",), 5), Narrowing(offset_end=5)),
        (LessThanOrEqual(("offset",), 5), Narrowing(offset_end=6)),
        (GreaterThan(("timestamp",), HALF_PAST), Narrowing(time_low_ms=2)),
        (GreaterThanOrEqual(("timestamp",), HALF_PAST), Narrowing(time_low_ms=2)),
        (EqualTo(("timestamp",), EPOCH + timedelta(milliseconds=9)), Narrowing(time_low_ms=9, time_end_ms=10)),
        (LessThan(("timestamp",), HALF_PAST), Narrowing(time_end_ms=2)),
        (LessThanOrEqual(("timestamp",), HALF_PAST), Narrowing(time_end_ms=2)),
        (LessThan(("timestamp",), EPOCH + timedelta(milliseconds=9)), Narrowing(time_end_ms=9)),
        (LessThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=9)), Narrowing(time_end_ms=10)),
        (GreaterThan(("timestamp",), datetime(2026, 1, 1)), Narrowing()),
        (EqualTo(("value",), b"x"), Narrowing()),
        (IsNotNull(("offset",)), Narrowing()),
        (Not(EqualTo(("partition",), 3)), Narrowing()),
        (StringStartsWith(("topic",), "a"), Narrowing()),
        (EqualTo(("offset",), 5.5), Narrowing()),
    ],
)
def test_a_comparison_narrows_what_it_can(one: Filter, expected: Narrowing) -> None:
    assert narrowing_of([one]) == expected


def test_comparisons_add_up() -> None:
    found = narrowing_of(
        [
            GreaterThanOrEqual(("offset",), 5),
            LessThan(("offset",), 9),
            GreaterThan(("offset",), 2),
            In(("partition",), (1, 2)),
            EqualTo(("partition",), 2),
            GreaterThan(("timestamp",), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ]
    )
    assert found == Narrowing(offset_low=5, offset_end=9, partitions=frozenset({2}), time_low_ms=1001)


def test_spark_gets_every_filter_back_and_the_reader_remembers() -> None:
    reader = reader_of(parse_options({"subscribe": "a"}))
    filters: list[Filter] = [EqualTo(("partition",), 3), IsNotNull(("value",))]
    assert list(reader.pushFilters(filters)) == filters
    assert reader.narrowing == Narrowing(partitions=frozenset({3}))


def test_tasks_get_the_bounds_of_time_alone() -> None:
    reader = reader_of(parse_options({"subscribe": "a"}))
    reader.narrowing = Narrowing(time_low_ms=5, offset_low=7)
    assert pickle.loads(pickle.dumps(reader)).reading.times == TimeBounds(5, None)
    reader.narrowing = Narrowing(offset_low=7)
    assert pickle.loads(pickle.dumps(reader)).reading.times is None


def test_a_reader_does_not_depend_on_push_down_so_spark_may_have_it_off() -> None:
    reader = reader_of(parse_options({"subscribe": "a"}))
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
