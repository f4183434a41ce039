"""Whole columns of records: `send_batch` of both producers."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from raylog.base.errors import (
    BufferExhausted,
    ClientClosed,
    InvalidTimestamp,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from raylog.client.producer.columns import BatchMetadata
from raylog.client.producer.partitioner import partition_for_key
from raylog.client.producer.producer import AsyncProducer, Producer
from tests.unit.client.toy_server import ToyCluster


def stored(cluster: ToyCluster, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for _, key, value in cluster.records(topic, partition)]


def test_a_batch_becomes_records_in_its_order(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    values = [b"%d" % number for number in range(1000)]
    with Producer(**cluster.options) as producer:
        sent = producer.send_batch("t", values, timestamp_ms=7)
        (piece,) = sent.result(10)
        assert sent.done()
        assert len(sent) == 1000
    assert (piece.topic, piece.partition, piece.offset, piece.count) == ("t", 0, 0, 1000)
    assert stored(cluster, "t") == [(None, value) for value in values]
    ((header, columns),) = cluster.do(cluster.partitions["t", 0].columns)
    assert header.record_count == 1000
    assert set(columns.timestamps) == {7}


def test_what_was_sent_before_and_behind_a_batch_keeps_its_place(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, linger_ms=1000) as producer:
        producer.send("t", b"first")
        producer.send_batch("t", [b"second", b"third"])
        producer.send("t", b"fourth")
    assert [value for _, value in stored(cluster, "t")] == [b"first", b"second", b"third", b"fourth"]


def test_a_large_batch_is_sent_in_pieces_of_a_request_each(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    values = [b"%06d" % number * 20 for number in range(10_000)]
    with Producer(**cluster.options, max_request_size=100_000) as producer:
        pieces = producer.send_batch("t", values, partition=0).result(10)
    assert len(pieces) > 10
    assert [piece.offset for piece in pieces] == [
        sum(piece.count for piece in pieces[:place]) for place in range(len(pieces))
    ]
    assert [value for _, value in stored(cluster, "t")] == values
    assert all(header.size <= 100_000 for header, _ in cluster.do(cluster.partitions["t", 0].columns))


def test_a_topic_with_a_smaller_limit_gets_smaller_pieces(cluster: ToyCluster) -> None:
    cluster.create_topic("t", config={"max.message.bytes": "5000"})
    with Producer(**cluster.options) as producer:
        producer.send_batch("t", [b"x" * 100] * 1000).result(10)
    assert all(header.size <= 5000 for header, _ in cluster.do(cluster.partitions["t", 0].columns))


def test_records_with_keys_go_to_their_partitions_and_others_to_one(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    keys = [None if number % 5 == 0 else b"key-%d" % (number % 7) for number in range(100)]
    values = [b"%d" % number for number in range(100)]
    with Producer(**cluster.options) as producer:
        pieces = producer.send_batch("t", values, keys).result(10)
    assert sum(piece.count for piece in pieces) == 100
    keyless = set()
    for partition in range(3):
        found = stored(cluster, "t", partition)
        expected = [(key, value) for key, value in zip(keys, values, strict=True) if (key, value) in found]
        assert sorted(found, key=lambda entry: int(entry[1] or b"")) == expected
        assert {partition_for_key(key, 3) for key, _ in found if key is not None} <= {partition}
        keyless |= {partition for key, _ in found if key is None}
    assert len(keyless) == 1


def test_batches_without_key_reach_all_partitions_by_and_by(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    with Producer(**cluster.options) as producer:
        pieces = [producer.send_batch("t", [b"x" * 1000] * 20) for _ in range(60)]
        assert {piece.partition for sent in pieces for piece in sent.result(10)} == {0, 1, 2}


def test_a_partitioner_of_the_user_is_called(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    with Producer(**cluster.options, partitioner=lambda topic, key, count: len(key or b"") % count) as producer:
        pieces = producer.send_batch("t", [b"a", b"b"], [b"k", b"kk"]).result(10)
        (alone,) = producer.send_batch("t", [b"c"]).result(10)
    assert [piece.partition for piece in pieces] == [1, 2]
    assert alone.partition == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"a", b"bb", b"", b"dddd"]),
        pa.array([b"a", b"bb", b"", b"dddd"], pa.large_binary()),
        pa.array(["a", "bb", "", "dddd"]),
        pa.array(["zzz", "a", "bb", "", "dddd", "y"]).slice(1, 4),
        pa.chunked_array([[b"a", b"bb"], [b"", b"dddd"]]),
        (b"a", bytearray(b"bb"), memoryview(b""), b"dddd"),
    ],
    ids=["binary", "large binary", "text", "slice", "chunks", "tuple"],
)
def test_columns_may_be_arrow_arrays_or_any_sequence(cluster: ToyCluster, column: Any) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send_batch("t", column).result(10)
        producer.send_batch("t", column, column).result(10)
    plain = [b"a", b"bb", b"", b"dddd"]
    assert stored(cluster, "t") == [(None, item) for item in plain] + [(item, item) for item in plain]


def test_nulls_are_tombstones_in_lists_and_arrays(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send_batch("t", [None, b"x"], [b"a", b"b"])
        producer.send_batch("t", pa.array([None, b"x"]), [b"a", b"b"])
        producer.send_batch("t", pa.array([None, None], pa.binary()), [b"a", b"b"])
    assert stored(cluster, "t") == [(b"a", None), (b"b", b"x")] * 2 + [(b"a", None), (b"b", None)]


def test_serializers_are_applied_to_each_entry(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, value_serializer="json", key_serializer="string") as producer:
        producer.send_batch("t", [{"a": 1}, None], ["k", None]).result(10)
    assert stored(cluster, "t") == [(b"k", b'{"a":1}'), (None, None)]


def test_an_empty_batch_is_done_at_once(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        sent = producer.send_batch("t", [])
        assert sent.done()
        assert sent.result(0) == []


def test_bad_columns_are_refused_before_anything_is_sent(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, max_request_size=1000) as producer:
        with pytest.raises(TypeError, match='value_serializer="string"'):
            producer.send_batch("t", [b"a", "text"])
        with pytest.raises(TypeError, match="list of bytes or an Arrow array"):
            producer.send_batch("t", b"not a column")
        with pytest.raises(ValueError, match="2 values, but 1 keys"):
            producer.send_batch("t", [b"a", b"b"], [b"k"])
        with pytest.raises(RecordTooLarge, match="max_request_size=1000"):
            producer.send_batch("t", [b"a"] * 500 + [b"x" * 2000])
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, not 4"):
            producer.send_batch("t", [b"a"], partition=4)
    assert stored(cluster, "t") == []
    with pytest.raises(ClientClosed):
        producer.send_batch("t", [b"a"])


def test_a_refused_piece_fails_the_batch(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["store", InvalidTimestamp.code])
    with Producer(**cluster.options, max_request_size=10_000) as producer:
        sent = producer.send_batch("t", [b"x" * 100] * 100)
        assert isinstance(sent.exception(10), InvalidTimestamp)
        with pytest.raises(InvalidTimestamp):
            sent.result(0)


def test_a_full_buffer_makes_it_wait_and_then_refuse(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    values = [b"x" * 100] * 2000
    with Producer(**cluster.options, buffer_memory=50_000, max_request_size=20_000) as producer:
        assert sum(piece.count for piece in producer.send_batch("t", values).result(10)) == 2000
    cluster.set_faults("t", 0, ["hold"])
    with Producer(**cluster.options, buffer_memory=50_000, max_request_size=20_000, max_block_ms=50) as producer:
        producer.send("t", b"first").done()
        cluster.wait_held("t", 0)
        with pytest.raises(BufferExhausted, match="buffer of 50000 bytes stayed full"):
            producer.send_batch("t", values)
        cluster.release("t", 0)


def test_in_a_coroutine(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=2)

    async def scenario() -> list[BatchMetadata]:
        async with AsyncProducer(**cluster.options, max_request_size=20_000, buffer_memory=50_000) as producer:
            return await (await producer.send_batch("t", [b"x" * 100] * 2000, partition=1))

    pieces = asyncio.run(scenario())
    assert sum(piece.count for piece in pieces) == 2000
    assert {piece.partition for piece in pieces} == {1}
    assert [piece.offset for piece in pieces] == sorted(piece.offset for piece in pieces)


@pytest.mark.parametrize("timestamps", [[5, 5, 9, 2], (5, 5, 9, 2), pa.array([5, 5, 9, 2], pa.int64())])
def test_records_have_headers_and_times_of_their_own(cluster: ToyCluster, timestamps: Any) -> None:
    cluster.create_topic("t")
    headers = [[("a", b"1")], None, {"b": None}, []]
    with Producer(**cluster.options) as producer:
        producer.send_batch("t", [b"0", b"1", b"2", b"3"], headers=headers, timestamp_ms=timestamps).result(10)
    ((_, columns),) = cluster.do(cluster.partitions["t", 0].columns)
    assert list(columns.timestamps) == [5, 5, 9, 2]
    assert [entry or None for entry in columns.headers or ()] == [[("a", b"1")], None, [("b", None)], None]


def test_headers_and_times_go_with_their_records_to_partitions(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    rows = range(300)
    keys = [None if row % 10 == 0 else b"key %d" % (row % 7) for row in rows]
    with Producer(**cluster.options, max_request_size=5_000) as producer:
        producer.send_batch(
            "t",
            [b"%d" % row for row in rows],
            keys,
            headers=[[("row", b"%d" % row)] for row in rows],
            timestamp_ms=[1000 + row for row in rows],
        ).result(10)
    seen = []
    for partition in range(3):
        for _, columns in cluster.do(cluster.partitions["t", partition].columns):
            for at, value in enumerate(columns.values or ()):
                row = int(value or b"")
                assert columns.timestamps[at] == 1000 + row
                assert (columns.headers or [])[at] == [("row", b"%d" % row)]
                key = keys[row]
                assert (columns.keys or [None] * 300)[at] == key
                assert key is None or partition == partition_for_key(key, 3)
                seen.append(row)
    assert sorted(seen) == list(rows)


def test_futures_have_the_times_of_their_records(cluster: ToyCluster) -> None:
    cluster.create_topic("t")

    async def scenario() -> list[BatchMetadata]:
        async with AsyncProducer(**cluster.options) as producer:
            sent = await producer.send_batch("t", [b"0", b"1"], headers=[None, {"a": b""}], timestamp_ms=[3, 4])
            return await sent

    assert [piece.count for piece in asyncio.run(scenario())] == [2]
    ((_, columns),) = cluster.do(cluster.partitions["t", 0].columns)
    assert list(columns.timestamps) == [3, 4]


@pytest.mark.parametrize(
    ("columns", "kind", "sentence"),
    [
        ({"headers": [None]}, ValueError, "2 values, but 1 headers"),
        ({"timestamp_ms": [1, 2, 3]}, ValueError, "2 values, but 3 timestamps"),
        ({"timestamp_ms": [1, -2]}, ValueError, "from 0 to 2"),
        ({"timestamp_ms": [1, 2.5]}, TypeError, "must be a whole number of milliseconds"),
        ({"headers": {"a": b"1"}}, TypeError, "a list with the headers of each record"),
        ({"headers": [("a", b"1"), ("b", b"2")]}, TypeError, "a list with an entry for each record"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_once(
    cluster: ToyCluster, columns: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer, pytest.raises(kind, match=sentence):
        producer.send_batch("t", [b"0", b"1"], **columns)
    assert stored(cluster, "t") == []
