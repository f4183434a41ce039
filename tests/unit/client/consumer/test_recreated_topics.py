"""Clients that live on while their topic is deleted and made again; and the sizes at the edge of what topics take."""

import threading
from typing import Any

import pytest

from raylog.base.errors import NoOffsetForPartition, RaylogError, RecordTooLarge, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.partitioner import partition_for_key
from raylog.client.producer.producer import Producer
from raylog.storage.log.config import LogConfig
from raylog.storage.log.validation import check_produced, inspect
from tests.unit.client.consumer_support import fill, numbers
from tests.unit.client.toy_partition import ToyPartition
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

HERE = TopicPartition("t", 0)


def test_keys_go_to_the_partitions_that_are_left(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=6)
    keys = [b"key-%d" % number for number in range(30)]
    with Producer(**cluster.options, delivery_timeout_ms=20_000, metadata_max_age_ms=100) as producer:
        for future in [producer.send("t", b"old", key) for key in keys]:
            future.result(10)
        cluster.delete_topic("t")
        cluster.create_topic("t", partitions=2)
        outcomes: list[RaylogError | None] = [producer.send("t", b"new", key).exception(15) for key in keys]
        assert all(isinstance(error, UnknownTopicOrPartition) for error in outcomes if error is not None)
        again = [producer.send("t", b"again", key) for key in keys]
        assert [each.result(10).partition for each in again] == [partition_for_key(key, 2) for key in keys]
        assert producer.send("t", b"no key").result(10).partition in (0, 1)
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 1, not 5"):
            producer.send("t", b"x", partition=5)
        assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory


def test_threads_that_send_meanwhile_lose_no_record_without_an_error(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=8)
    stop = threading.Event()
    lost: list[BaseException] = []
    with Producer(**cluster.options, delivery_timeout_ms=20_000, metadata_max_age_ms=50) as producer:

        def send(thread: int) -> None:
            number = 0
            while not stop.is_set():
                try:
                    future = producer.send("t", b"%d" % number, b"%d-%d" % (thread, number % 50))
                    future.exception(15)
                except UnknownTopicOrPartition:
                    pass  # while it does not exist
                except BaseException as error:  # shown by the test, which runs on another thread
                    lost.append(error)
                    return
                number += 1

        threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(3)]
        for thread in threads:
            thread.start()
        for partitions in (3, 8, 1):
            cluster.delete_topic("t")
            cluster.create_topic("t", partitions=partitions)
            assert producer.send("t", b"probe", partition=0).exception(15) is None
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert not lost, lost
        producer.flush(15)
        assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory


def test_what_a_consumer_has_fetched_comes_before_the_new_topic(cluster: ToyCluster) -> None:
    """A thread that took old records while the loop moved the position set it again: nothing was fetched any more."""
    cluster.create_topic("t", partitions=1)
    fill(cluster, "t", 0, numbers(0, 10))
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "metadata_max_age_ms": 100}
    with Consumer(**cluster.options, **options) as consumer:
        consumer.assign([HERE])
        found = [record.value for records in consumer.poll(10_000, max_records=3).values() for record in records]
        cluster.delete_topic("t")
        cluster.create_topic("t", partitions=1)
        fill(cluster, "t", 0, numbers(100, 105))
        state = consumer._engine.assignment.states[HERE]
        wait_for(lambda: state._damage is not None, "the fetcher has met the new topic")
        assert state.position == 3, "the position is the taking thread's"
        while len(found) < 15:
            found += [record.value for records in consumer.poll(10_000).values() for record in records]
        assert found == numbers(0, 10) + numbers(100, 105)
        assert consumer.position(HERE) == 5


def test_a_consumer_without_a_reset_names_the_topic_that_was_made_again(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=1)
    fill(cluster, "t", 0, numbers(0, 10))
    options: dict[str, Any] = {"auto_offset_reset": "none", "enable_auto_commit": False, "metadata_max_age_ms": 100}
    with Consumer(**cluster.options, **options) as consumer:
        consumer.assign([HERE])
        consumer.seek(HERE, 0)
        assert len(consumer.poll(10_000)[HERE]) == 10
        cluster.delete_topic("t")
        cluster.create_topic("t", partitions=1)
        with pytest.raises(NoOffsetForPartition, match="t was deleted and created again while it was read"):
            consumer.poll(20_000)


@pytest.mark.parametrize("key", [None, b"key"])
def test_send_and_a_leader_take_the_same_largest_record(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, key: bytes | None
) -> None:
    """Records of 1,048,518 to 1,048,564 bytes passed, and were refused."""
    cluster.create_topic("t")
    normal = ToyPartition.append

    def strict(partition: ToyPartition, payload: memoryview) -> int:
        check_produced(inspect(payload), LogConfig(max_message_bytes=1_048_588), now_ms=0)
        return normal(partition, payload)

    monkeypatch.setattr(ToyPartition, "append", strict)
    with Producer(**cluster.options, max_request_size=2_000_000) as producer:
        taken, refusals = 0, set()
        for size in range(1_048_588 - 90, 1_048_588 - 60, 3):
            try:
                future = producer.send("t", bytes(size), key)
            except RecordTooLarge as error:
                refusals.add(str(error).split("over ")[1])
            else:
                assert future.exception(10) is None
                taken += 1
        assert 0 < taken < 10
        assert refusals == {"max.message.bytes=1048588 of 't'; send less, or raise that limit."}
    with Producer(**cluster.options) as producer:
        with pytest.raises(RecordTooLarge, match="max_request_size=1048576"):
            producer.send("t", bytes(1_048_518))
        with pytest.raises(RecordTooLarge, match="max_request_size=1048576"):
            producer.send_batch("t", [bytes(1_048_518)])
        assert producer.send("t", bytes(1_048_505)).exception(10) is None
