"""Arrow columns: `Producer.send_arrow`."""

from typing import Any

import pyarrow as pa
import pytest

from raylog.base.errors import InvalidRecord, RecordTooLarge, UnknownTopicOrPartition
from raylog.client.producer.arrow_columns import ArrowColumns, header_type
from raylog.client.producer.partitioner import partition_for_key
from raylog.client.producer.producer import Producer
from tests.unit.client.toy_server import ToyCluster


def stored(cluster: ToyCluster, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for _, key, value in cluster.records(topic, partition)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_columns_become_records_in_their_order(cluster: ToyCluster, kind: Any, codec: Any) -> None:
    cluster.create_topic("t")
    values = [f"{number:04}" for number in range(1000)]
    with Producer(**cluster.options, compression_type=codec) as producer:
        sent = producer.send_arrow("t", ArrowColumns(pa.array(values, kind)))
        (piece,) = sent.result(10)
    assert (piece.partition, piece.offset, piece.count) == (0, 0, 1000)
    assert stored(cluster, "t") == [(None, value.encode()) for value in values]


def test_timestamps_headers_and_nulls_are_stored(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    columns = ArrowColumns(
        pa.array([b"a", None, b""]),
        pa.array([None, b"key", b"k" * 300]),
        pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []], header_type()),
        pa.array([5, 5000, 1], pa.int64()),
    )
    with Producer(**cluster.options) as producer:
        producer.send_arrow("t", columns, pa.array([0, 0, 0], pa.int32())).result(10)
    ((header, found),) = cluster.do(cluster.partitions["t", 0].columns)
    assert found.values == [b"a", None, b""]
    assert found.keys == [None, b"key", b"k" * 300]
    assert found.timestamps == [5, 5000, 1]
    assert header.max_timestamp == 5000
    assert [row or [] for row in found.headers or ()] == [[("h", b"1"), ("h", None)], [], []]


def test_a_named_partition_wins_over_the_key(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    keys = [b"key-%d" % (number % 50) for number in range(300)]
    named = [None if number % 2 else number % 3 for number in range(300)]
    columns = ArrowColumns(pa.array([b"%d" % number for number in range(300)]), pa.array(keys))
    with Producer(**cluster.options) as producer:
        producer.send_arrow("t", columns, pa.array(named, pa.int32())).result(10)
    expected: dict[int, list[tuple[bytes | None, bytes | None]]] = {0: [], 1: [], 2: []}
    for number in range(300):
        partition = named[number]
        partition = partition_for_key(keys[number], 3) if partition is None else partition
        expected[partition].append((keys[number], b"%d" % number))
    assert {partition: stored(cluster, "t", partition) for partition in expected} == expected


def test_large_columns_are_sent_in_pieces_of_a_request_each(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    values = [b"%06d" % number * 20 for number in range(10_000)]
    with Producer(**cluster.options, max_request_size=100_000, buffer_memory=400_000) as producer:
        pieces = producer.send_arrow("t", ArrowColumns(pa.array(values).slice(0))).result(10)
    assert len(pieces) > 10
    assert [value for _, value in stored(cluster, "t")] == values
    assert all(header.size <= 100_000 for header, _ in cluster.do(cluster.partitions["t", 0].columns))


def test_what_cannot_be_stored_is_refused(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=2, config={"max.message.bytes": "5000"})
    with Producer(**cluster.options) as producer:
        with pytest.raises(RecordTooLarge, match=r"6069 bytes, over max\.message\.bytes=5000 of 't'"):
            producer.send_arrow("t", ArrowColumns(pa.array([b"x", b"x" * 6000])))
        with pytest.raises(UnknownTopicOrPartition, match="has partitions 0 to 1, not 2"):
            producer.send_arrow("t", ArrowColumns(pa.array([b"x"])), pa.array([2], pa.int32()))
        with pytest.raises(InvalidRecord, match="a number from 0 on, not -1"):
            producer.send_arrow("t", ArrowColumns(pa.array([b"x"])), pa.array([-1], pa.int32()))
        nameless = pa.array([[{"key": None, "value": b"1"}]], header_type())
        with pytest.raises(InvalidRecord, match="header has no key"):
            producer.send_arrow("t", ArrowColumns(pa.array([b"x"]), None, nameless))
        assert len(producer.send_arrow("t", ArrowColumns(pa.array([], pa.binary())))) == 0
