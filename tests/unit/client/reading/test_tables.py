"""`raylog.read`: the records of a span of time as one table, from a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import raylog
from raylog.base.errors import InvalidConfig, UnknownTopicOrPartition
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import START_MS, fill, value_of


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    """A cluster in memory with 300 records, a millisecond apart, in each of the two partitions of `orders`."""
    with ToyCluster(brokers=2) as running:
        running.create_topic("orders", 2)
        for partition in (0, 1):
            fill(running, "orders", partition, [70, 80, 150])
        yield running


def read(cluster: ToyCluster, **given: Any) -> Any:
    """The table."""
    return raylog.read("orders", bootstrap=cluster.bootstrap, secret=SECRET.hex(), **given)


def test_a_table_has_every_record_in_order(cluster: ToyCluster) -> None:
    table = read(cluster)
    assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    places = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert places == [(partition, offset) for partition in (0, 1) for offset in range(300)]
    assert table["value"].to_pylist()[:300] == [value_of("orders", 0, offset) for offset in range(300)]


def test_a_span_of_time_ends_before_its_end(cluster: ToyCluster) -> None:
    begin = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=100)
    table = read(cluster, start=begin, end=START_MS + 200, columns=["offset"])
    assert table.column_names == ["offset"]
    assert table["offset"].to_pylist() == [*range(100, 200), *range(100, 200)]


def test_a_span_without_records_is_an_empty_table(cluster: ToyCluster) -> None:
    assert read(cluster, start=START_MS + 10_000_000).num_rows == 0
    assert read(cluster, end=START_MS).num_rows == 0


def test_a_table_becomes_a_frame_of_pandas(cluster: ToyCluster) -> None:
    frame = read(cluster, columns=["partition", "value"]).to_pandas()
    assert frame.groupby("partition")["value"].count().to_dict() == {0: 300, 1: 300}


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"start": datetime(2030, 1, 1)}, ValueError, "^start=2030-01-01T00:00:00 has no zone"),
        ({"end": "yesterday"}, TypeError, "^end must be milliseconds"),
        ({"start": 2_000, "end": 1_000}, InvalidConfig, "end lies before start"),
        ({"columns": ["valeu"]}, InvalidConfig, "did you mean 'value'"),
        ({"columns": "value"}, InvalidConfig, "must be a list"),
    ],
)
def test_what_cannot_be_read_is_refused(
    cluster: ToyCluster, given: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        read(cluster, **given)


def test_an_unknown_topic_is_refused(cluster: ToyCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="did you mean 'orders'"):
        raylog.read("ordres", bootstrap=cluster.bootstrap, secret=SECRET.hex())
    with pytest.raises(TypeError, match="must be its name"):
        raylog.read([7], bootstrap="a:1")  # type: ignore[list-item]
