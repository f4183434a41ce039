"""The accumulator by itself: memory that a thread waits for, and topics recreated with fewer partitions."""

import pytest

from raylog.base.errors import UnknownTopicOrPartition
from raylog.client.cluster.metadata import PartitionInfo, TopicInfo
from raylog.client.config import ProducerConfig
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.partition_queues import PartitionQueue, TopicQueues

NEVER_LATE_S = 0.0


def topic(accumulator: Accumulator, partitions: int) -> TopicQueues:
    rows = tuple(PartitionInfo(number, 0, 1, "h", 9, (0,), (0,)) for number in range(partitions))
    return accumulator.topic_queues(TopicInfo(f"of {partitions}", "t", False, rows, {}, 1))


def made(**options: int) -> Accumulator:
    return Accumulator(ProducerConfig(**options), lambda: None)  # type: ignore[arg-type]


def test_a_lingering_batch_is_sent_when_a_thread_waits_for_its_memory() -> None:
    accumulator = made(linger_ms=60_000, buffer_memory=100)
    queues = topic(accumulator, 1)
    first = accumulator.append(queues, None, b"x" * 60, None, 0, 1)
    assert accumulator.append(queues, None, b"x" * 60, None, 0, 1) is None
    assert accumulator.take(queues.queues[0], NEVER_LATE_S) is None
    assert accumulator.when_room(lambda: None)
    taken = accumulator.take(queues.queues[0], NEVER_LATE_S)
    assert taken is not None
    assert first is not None
    assert first._batch is taken


def test_a_batch_behind_one_in_flight_lingers_also_when_a_thread_waits() -> None:
    accumulator = made(linger_ms=60_000, buffer_memory=200)
    queues = topic(accumulator, 1)
    accumulator.append_batch(queues, queues.queues[0], None, [b"x"], [(0, 1)], 100)
    assert accumulator.take(queues.queues[0], NEVER_LATE_S) is not None
    accumulator.append(queues, None, b"x" * 60, None, 0, 1)
    assert accumulator.when_room(lambda: None)
    assert accumulator.take(queues.queues[0], NEVER_LATE_S) is None


def test_a_waiting_thread_is_woken_when_a_batch_is_done() -> None:
    accumulator = made(buffer_memory=100)
    queues = topic(accumulator, 1)
    assert not accumulator.when_room(lambda: None)
    accumulator.append_batch(queues, queues.queues[0], None, [b"x"], [(0, 1)], 100)
    woken: list[int] = []
    assert accumulator.when_room(lambda: woken.append(1))
    accumulator.release(queues.queues[0], 100)
    accumulator.release(queues.queues[0], 0)
    assert woken == [1]


def test_columns_for_a_removed_partition_are_refused_and_hold_no_memory() -> None:
    accumulator = made()
    removed = topic(accumulator, 2).queues[1]
    queues = topic(accumulator, 1)
    with pytest.raises(UnknownTopicOrPartition, match="does not exist"):
        accumulator.append_batch(queues, removed, None, [b"x"], [(0, 1)], 20)
    assert accumulator.buffered_bytes == 0


def test_a_key_whose_partition_went_since_the_look_up_goes_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = made()
    found: list[PartitionQueue | None] = [topic(accumulator, 2).queues[1]]
    queues = topic(accumulator, 1)
    look_up = accumulator.queue_of
    monkeypatch.setattr(accumulator, "queue_of", lambda *args: found.pop() if found else look_up(*args))
    future = accumulator.append(queues, b"key", b"x", None, None, 1)
    assert future is not None
    assert future._batch is queues.queues[0].open


def test_keys_are_spread_again_when_partitions_are_added() -> None:
    accumulator = made()
    keys = [b"%d" % number for number in range(20)]
    queues = topic(accumulator, 1)
    assert {queues.queue_of_key(key).partition for key in keys} == {0}
    queues = topic(accumulator, 3)
    assert {queues.queue_of_key(key).partition for key in keys} == {0, 1, 2}


def test_records_without_key_leave_a_removed_partition() -> None:
    accumulator = made()
    queues = topic(accumulator, 3)
    queues.sticky = queues.queues[2]
    topic(accumulator, 1)
    assert queues.sticky is queues.queues[0]
