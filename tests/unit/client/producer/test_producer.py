"""Producer and AsyncProducer against a healthy cluster."""

import asyncio
import gc
import multiprocessing
import threading
import warnings
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import pytest

from raylog.base.errors import (
    BufferExhausted,
    ClientClosed,
    InvalidConfig,
    RecordTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.client.producer.partitioner import partition_for_key
from raylog.client.producer.producer import AsyncProducer, Producer, SendFuture
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for


def values(cluster: ToyCluster, topic: str, partition: int) -> list[bytes | None]:
    return [value for _, _, value in cluster.records(topic, partition)]


def test_a_future_returns_where_the_record_was_stored(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=2)
    with Producer(**cluster.options) as producer:
        first = producer.send("t", b"a", partition=1, timestamp_ms=5).result(10)
        second = producer.send("t", b"b", partition=1).result(10)
    assert (first.topic, first.partition, first.offset, first.timestamp_ms) == ("t", 1, 0, 5)
    assert second.offset == 1
    assert second.timestamp > 1_700_000_000_000
    assert second.topic_partition == ("t", 1)


def test_a_future_has_the_time_of_the_append_where_the_topic_gives_it(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.partitions["t", 0].append_ms = 77
    with Producer(linger_ms=20, **cluster.options) as producer:
        sent = [producer.send("t", b"a", timestamp_ms=number) for number in range(3)]
        assert [future.result(10).timestamp_ms for future in sent] == [77, 77, 77]
        cluster.partitions["t", 0].append_ms = -1
        assert producer.send("t", b"a", timestamp_ms=5).result(10).timestamp_ms == 5


def test_keys_headers_and_tombstones_arrive(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"plain")
        producer.send("t", None, b"k", headers=[("source", b"csv")])
        producer.send("t", bytearray(b"view"), memoryview(b"m"))
    (_, columns), *rest = cluster.do(cluster.partitions["t", 0].columns)
    assert not rest
    assert columns.keys == [None, b"k", b"m"]
    assert columns.values == [b"plain", None, b"view"]
    assert columns.headers == [None, [("source", b"csv")], None]


def test_records_of_a_key_go_to_kafkas_partition(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=5)
    with Producer(**cluster.options) as producer:
        keys = [b"key-%d" % number for number in range(50)]
        found = [producer.send("t", b"", key) for key in keys]
        assert [entry.result(10).partition for entry in found] == [partition_for_key(key, 5) for key in keys]


def test_records_without_key_fill_a_batch_of_each_partition_in_turn(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    with Producer(**cluster.options, batch_size=500, linger_ms=0) as producer:
        found = [producer.send("t", b"x" * 50).result(10).partition for _ in range(300)]
    switches = sum(entry != other for entry, other in pairwise(found))
    assert set(found) == {0, 1, 2}
    assert switches <= 300 * 62 / 500


def test_a_partitioner_of_ones_own_decides(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    with Producer(**cluster.options, partitioner=lambda topic, key, count: count - 1) as producer:
        assert producer.send("t", b"x", b"k").result(10).partition == 2


def test_serializers_turn_objects_into_bytes(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, key_serializer="string", value_serializer="json") as producer:
        producer.send("t", {"a": 1}, "k").result(10)
    assert cluster.records("t", 0) == [(0, b"k", b'{"a":1}')]


def test_a_wrong_type_names_the_serializer_to_give(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        with pytest.raises(TypeError, match='value_serializer="string"'):
            producer.send("t", "text")
        with pytest.raises(TypeError, match='key_serializer="json"'):
            producer.send("t", b"", {"a": 1})
        with pytest.raises(TypeError, match="must be bytes or None, not str"):
            producer.send("t", b"", headers=[("a", "b")])  # type: ignore[list-item]
        producer.send("t", b"fine").result(10)
    assert values(cluster, "t", 0) == [b"fine"]


def test_a_record_that_is_too_large_is_refused_alone(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, max_request_size=1000) as producer:
        producer.send("t", b"before")
        with pytest.raises(RecordTooLarge, match="max_request_size=1000"):
            producer.send("t", b"x" * 1001)
        producer.send("t", b"after").result(10)
    assert values(cluster, "t", 0) == [b"before", b"after"]


def test_an_unknown_topic_names_the_nearest(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    with Producer(**cluster.options, max_block_ms=1000) as producer:
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
            producer.send("fligths", b"x")
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, not 4"):
            producer.send("flights", b"x", partition=4)
        assert producer.partitions_for("flights") == {0}


def test_an_unknown_keyword_names_the_nearest(cluster: ToyCluster) -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'linger_ms'"):
        Producer(**cluster.options, lingerms=5)  # type: ignore[call-arg]


def test_a_full_buffer_makes_send_wait_and_then_fail(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    with Producer(**cluster.options, buffer_memory=1000, batch_size=100, max_block_ms=50) as producer:
        for _ in range(10):
            producer.send("t", b"x" * 88)
        with pytest.raises(BufferExhausted, match="buffer_memory"):
            producer.send("t", b"x" * 88)
        waiting = threading.Thread(target=lambda: [producer.send("t", b"y" * 88) for _ in range(50)])
        cluster.release("t", 0)
        producer.flush(10)
        waiting.start()
        waiting.join(20)
        producer.flush(10)
    assert values(cluster, "t", 0).count(b"y" * 88) == 50


def test_waits_that_were_given_up_leave_nothing_behind(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    with Producer(**cluster.options, buffer_memory=1000, batch_size=100, max_block_ms=0) as producer:
        for _ in range(10):
            producer.send("t", b"x" * 88)
        for _ in range(200):
            with pytest.raises(BufferExhausted):
                producer.send("t", b"x" * 88)
        assert not producer._accumulator._waiters
        for _ in range(20):
            with pytest.raises(RequestTimedOut):
                producer.flush(0.001)
        batches = [batch for each in producer._engine._sender._deliveries.values() for batch in each.batches]
        assert batches
        assert not any(batch._callbacks for batch in batches)
        cluster.release("t", 0)
        producer.flush(10)


async def test_waits_of_tasks_that_were_given_up_leave_nothing_behind(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    options = {**cluster.options, "buffer_memory": 1000, "batch_size": 100, "max_block_ms": 60_000}
    async with AsyncProducer(**options) as producer:
        sent = [await producer.send("t", b"x" * 88) for _ in range(10)]
        for _ in range(50):
            with pytest.raises(TimeoutError):
                _ = await asyncio.wait_for(producer.send("t", b"x" * 88), 0.001)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sent[0], 0.001)
        assert not producer._engine.accumulator._waiters
        assert not sent[0]._batch._callbacks
        await asyncio.get_running_loop().run_in_executor(None, cluster.release, "t", 0)
        await producer.flush(10)


def test_flush_waits_for_what_was_sent_before(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    with Producer(**cluster.options, linger_ms=60_000) as producer:
        found = [producer.send("t", b"x", partition=number % 3) for number in range(30)]
        assert not any(entry.done() for entry in found)
        producer.flush(10)
        assert all(entry.done() for entry in found)


def test_a_flush_that_is_late_says_so(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    with Producer(**cluster.options) as producer:
        found = producer.send("t", b"x")
        with pytest.raises(RequestTimedOut, match="flush"):
            producer.flush(0.05)
        with pytest.raises(TimeoutError):
            found.result(0.01)
        cluster.release("t", 0)
        found.result(10)


def test_a_batch_waits_for_its_linger_time_but_not_when_it_is_full(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, linger_ms=60_000, batch_size=200) as producer:
        found = [producer.send("t", b"x" * 30) for _ in range(5)]
        assert found[0].result(10).offset == 0


def test_under_load_batches_grow(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    with Producer(**cluster.options, batch_size=100) as producer:
        for _ in range(2000):
            producer.send("t", b"x" * 30)
        cluster.release("t", 0)
        producer.flush(10)
        assert producer.metrics()["batch-size-avg"] > 5_000
        assert producer.metrics()["record-send-total"] == 2000
        assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory


def test_threads_share_a_producer_and_each_keeps_its_order(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:

        def work(name: int) -> None:
            for number in range(500):
                producer.send("t", b"%d:%d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    stored = values(cluster, "t", 0)
    for name in range(4):
        mine = [value for value in stored if value is not None and value.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, number) for number in range(500)]


def test_callbacks_are_called_in_order_and_their_errors_are_contained(
    cluster: ToyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t")
    seen: list[int] = []

    def note(future: SendFuture) -> None:
        seen.append(future.result(0).offset)
        if len(seen) == 3:
            raise ValueError("a user's bug")

    with Producer(**cluster.options) as producer:
        for _ in range(10):
            producer.send("t", b"x").add_done_callback(note)
        producer.flush(10)
        done = producer.send("t", b"x")
        done.result(10)
        done.add_done_callback(note)
    assert seen == list(range(11))
    assert "callback of a sent record" in caplog.text


def test_waiting_inside_a_callback_is_refused_instead_of_hanging(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    errors: list[BaseException] = []

    with Producer(**cluster.options) as producer:

        def wrong(_: SendFuture) -> None:
            try:
                producer.send("t", b"second").result(5)
            except RuntimeError as error:
                errors.append(error)

        producer.send("t", b"first").add_done_callback(wrong)
        producer.flush(10)
        wait_for(lambda: bool(errors), "the callback does not end")  # it may run after the flush has returned
    assert "block the event loop" in str(errors[0])


@pytest.mark.parametrize(("acks", "offset"), [(1, 0), (0, -1), ("all", 0)])
def test_every_level_of_acks_stores_the_record(cluster: ToyCluster, acks: Any, offset: int) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, acks=acks) as producer:
        assert producer.send("t", b"x").result(10).offset == offset
        for _ in range(100):
            producer.send("t", b"y")
        producer.flush(10)
        wait_for(lambda: len(cluster.records("t", 0)) >= 101, "the records are stored")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_readable(cluster: ToyCluster, codec: Any) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, compression_type=codec) as producer:
        for _ in range(100):
            producer.send("t", b"x" * 100)
        producer.flush(10)
        assert producer.metrics()["compression-rate-avg"] < 0.5
    assert values(cluster, "t", 0) == [b"x" * 100] * 100


def test_a_closed_producer_refuses_and_closing_again_does_nothing(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    producer = Producer(**cluster.options)
    found = producer.send("t", b"x")
    producer.close()
    producer.close()
    assert found.result(0).offset == 0
    with pytest.raises(ClientClosed):
        producer.send("t", b"x")
    with pytest.raises(ClientClosed):
        producer.flush()


def test_closing_in_a_hurry_fails_what_is_left(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    producer = Producer(**cluster.options)
    found = producer.send("t", b"x")
    producer.close(timeout=0.05)
    assert isinstance(found.exception(0), ClientClosed)


def test_a_producer_left_open_warns_and_does_not_hang(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    producer = Producer(**cluster.options)
    found = producer.send("t", b"x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert any("was not closed" in str(item.message) for item in caught)
    assert found.exception(10) is None


def _send_in_child(producer: Producer, pipe: Connection) -> None:
    try:
        producer.send("t", b"child")
    except ClientClosed as error:
        pipe.send(str(error))
    pipe.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_must_make_a_producer_of_its_own(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    here, there = multiprocessing.Pipe()
    with Producer(**cluster.options) as producer:
        producer.send("t", b"parent").result(10)
        child = multiprocessing.get_context("fork").Process(target=_send_in_child, args=(producer, there))
        child.start()
        assert here.poll(20)
        assert "before the fork" in here.recv()
        child.join(20)
        producer.send("t", b"parent").result(10)
    here.close()
    there.close()
    assert values(cluster, "t", 0) == [b"parent", b"parent"]


def test_partitions_that_are_added_are_used(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=1)
    with Producer(**cluster.options) as producer:
        producer.send("t", b"x").result(10)
        cluster.delete_topic("t")
        cluster.create_topic("t", partitions=2)
        assert producer.send("t", b"y", partition=1).result(10).partition == 1


async def test_the_asyncio_twin_sends_and_waits(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=2)
    async with AsyncProducer(**cluster.options) as producer:
        first = await producer.send_and_wait("t", b"a", partition=1)
        futures = [await producer.send("t", b"b", partition=1) for _ in range(50)]
        await producer.flush(10)
        assert all(future.done() for future in futures)
        assert await producer.partitions_for("t") == {0, 1}
        assert [first.offset, *[(await future).offset for future in futures]] == list(range(51))


def test_the_asyncio_twin_waits_for_memory_without_blocking_the_loop(cluster: ToyCluster) -> None:
    cluster.create_topic("t")

    async def scenario() -> None:
        async with AsyncProducer(**cluster.options, buffer_memory=2_000, batch_size=200) as producer:
            for _ in range(500):
                _ = await producer.send("t", b"x" * 88)
            await producer.flush(10)

    asyncio.run(scenario())
    assert len(cluster.records("t", 0)) == 500


async def test_the_asyncio_twin_must_be_started(cluster: ToyCluster) -> None:
    producer = AsyncProducer(**cluster.options)
    with pytest.raises(ClientClosed, match="not started"):
        _ = await producer.send("t", b"x")
    await producer.start()
    await producer.stop()
    with pytest.raises(ClientClosed):
        _ = await producer.send("t", b"x")


def test_without_linger_a_lone_record_leaves_at_once_and_others_wait(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"first").result(10)  # the first of a producer goes alone in any case
        cluster.set_faults("t", 0, ["hold"])
        producer.send("t", b"alone")
        cluster.wait_held("t", 0)
        behind = [producer.send("t", b"behind") for _ in range(3)]
        cluster.release("t", 0)
        assert [item.result(10).offset for item in behind] == [2, 3, 4]
    sizes = [header.record_count for header, _ in cluster.do(cluster.partitions["t", 0].columns)]
    assert sizes[:2] == [1, 1]
    assert sum(sizes) == 5
