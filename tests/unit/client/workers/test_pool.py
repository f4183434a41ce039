"""`WorkerPool`: one consumer, many threads."""

import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from raylog.base.errors import HandlerFailed, InvalidConfig, InvalidRequest, RecordDeserializationFailed
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.types import Record
from raylog.client.workers.pool import WorkerPool
from tests.unit.client.consumer_support import fill, numbers, with_coordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

T0 = TopicPartition("t", 0)


@pytest.fixture
def topic(cluster: ToyCluster) -> ToyCluster:
    """A topic of two partitions, 600 records each, thirty keys."""
    cluster.create_topic("t", partitions=2)
    for partition in range(2):
        fill(cluster, "t", partition, numbers(0, 600), keys=[b"%d of %d" % (row % 30, partition) for row in range(600)])
    return cluster


def consumer_of(cluster: ToyCluster, *topics: str, **options: Any) -> Consumer:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "retry_backoff_max_ms": 100}
    return Consumer(*topics, **{**cluster.options, **defaults, **options})


class Journal:
    """What was handled, in the order of each key, and how many handlers ran at the same time."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.by_key: dict[Any, list[int]] = defaultdict(list)
        self.running: set[Any] = set()
        self.most_running = 0
        self.breaches: list[str] = []
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def __call__(self, record: Record) -> None:
        with self._lock:
            if record.key in self.running:
                self.breaches.append(f"two handlers have {record.key!r}")
            self.running.add(record.key)
            self.most_running = max(self.most_running, len(self.running))
        if self._pause_s:
            time.sleep(self._pause_s)
        with self._lock:
            self.by_key[record.key].append(record.offset)
            self.running.discard(record.key)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_key.values()))

    def check(self) -> None:
        assert not self.breaches
        assert all(offsets == sorted(offsets) for offsets in self.by_key.values())


def test_every_record_is_handled_once_with_order_for_each_key(topic: ToyCluster) -> None:
    journal = Journal()
    with consumer_of(topic, "t") as consumer:
        pool = WorkerPool(consumer, journal, workers=4)
        pool.run(idle_timeout=0.2)
        assert pool.metrics()["records-handled-total"] == 1200
        assert pool.metrics()["records-in-flight"] == pool.metrics()["workers-busy"] == 0
    journal.check()
    assert journal.count == 1200
    assert len(journal.by_key) == 60


def test_handlers_of_different_keys_run_at_the_same_time(topic: ToyCluster) -> None:
    journal = Journal(pause_s=0.001)
    with consumer_of(topic, "t") as consumer:
        WorkerPool(consumer, journal, workers=12).run(idle_timeout=0.2)
    journal.check()
    assert journal.most_running == 12


def test_as_many_keys_as_workers_have_a_worker_each(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    keys = [b"%d" % (row % 16) for row in range(160)]
    fill(cluster, "t", 0, numbers(0, 160), keys=keys)
    together = threading.Barrier(16, timeout=10)  # breaks unless sixteen handlers run at the same time

    with consumer_of(cluster, "t") as consumer:
        pool = WorkerPool(consumer, lambda record: together.wait(), workers=16)
        pool.run(idle_timeout=0.2)
        assert pool.metrics()["records-handled-total"] == 160


@pytest.mark.parametrize(("order", "most"), [("partition", 2), ("none", 8)])
def test_other_orders(topic: ToyCluster, order: str, most: int) -> None:
    running, most_running, lock = 0, 0, threading.Lock()
    offsets: dict[int, list[int]] = defaultdict(list)

    def handle(record: Record) -> None:
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
            offsets[record.partition].append(record.offset)
        time.sleep(0.0005)
        with lock:
            running -= 1

    with consumer_of(topic, "t") as consumer:
        WorkerPool(consumer, handle, workers=8, order=order).run(idle_timeout=0.2)
    assert most_running == most
    if order == "partition":
        assert all(found == list(range(600)) for found in offsets.values())
    assert sorted(offsets[0]) == list(range(600))


def test_no_more_records_are_in_flight_than_allowed(topic: ToyCluster) -> None:
    gate, seen = threading.Event(), []

    def handle(record: Record) -> None:
        seen.append(pool.metrics()["records-in-flight"])
        gate.wait(0.001)

    with consumer_of(topic, "t") as consumer:
        pool = WorkerPool(consumer, handle, workers=3, max_in_flight=50)
        pool.run(idle_timeout=0.2)
    assert len(seen) == 1200
    assert 25 < max(seen) <= 50


def test_commits_stop_before_the_first_record_that_is_not_finished(topic: ToyCluster) -> None:
    with_coordinator(topic)
    slow, held = threading.Event(), threading.Event()

    def handle(record: Record) -> None:
        if record.key == b"7 of 0" and record.offset == 37:
            held.set()
            assert slow.wait(20)

    with consumer_of(topic, group_id="g", auto_commit_interval_ms=20) as consumer:
        consumer.assign([T0, TopicPartition("t", 1)])
        pool = WorkerPool(consumer, handle, workers=4)
        thread = threading.Thread(target=pool.run, kwargs={"idle_timeout": 0.2})
        thread.start()
        assert held.wait(10)
        with Consumer(group_id="g", **topic.options) as other:
            wait_for(lambda: other.committed(TopicPartition("t", 1)) == 600, "the finished partition is committed")
            wait_for(lambda: other.committed(T0) == 37, "the other is committed up to the slow record")
            slow.set()
            thread.join(20)
            assert not thread.is_alive()
            assert other.committed(T0) == 600


def test_a_failed_handler_ends_the_pool_and_its_record_is_read_again(topic: ToyCluster) -> None:
    with_coordinator(topic)
    seen: list[int] = []

    def handle(record: Record) -> None:
        if record.offset == 100 and broken:
            raise ValueError("no such customer")
        seen.append(record.offset)

    broken = True
    with consumer_of(topic, group_id="g") as consumer:
        consumer.assign([T0])
        pool = WorkerPool(consumer, handle, workers=4)
        with pytest.raises(HandlerFailed, match=r"at offset 100 of t-0 \(ValueError: no such customer\)") as caught:
            pool.run(idle_timeout=0.2)
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.details["record"].value == b"100"  # type: ignore[attr-defined]
        assert caught.value.details["offset"] == 100
        assert "give the pool an on_error" in caught.value.message
        assert consumer.committed(T0) == consumer.position(T0) <= 100
        assert not [offset for offset in seen if offset > 100 and offset % 30 == 100 % 30], "behind it in its key"
        broken = False
        pool.run(idle_timeout=0.2)
        assert consumer.committed(T0) == 600
    assert set(seen) == set(range(600))


def test_a_record_may_be_stepped_over(topic: ToyCluster) -> None:
    refused: list[tuple[int, str]] = []

    def handle(record: Record) -> None:
        if record.offset in (3, 500):
            raise LookupError(record.offset)

    with consumer_of(topic) as consumer:
        consumer.assign([T0])
        pool = WorkerPool(consumer, handle, on_error=lambda record, error: refused.append((record.offset, repr(error))))
        pool.run(idle_timeout=0.2)
        assert pool.metrics()["records-handled-total"] == 600
        assert pool.metrics()["records-failed-total"] == 2
    assert sorted(refused) == [(3, "LookupError(3)"), (500, "LookupError(500)")]


def test_a_handler_is_repeated_before_it_counts_as_failed(topic: ToyCluster) -> None:
    calls: dict[int, int] = defaultdict(int)
    order: list[int] = []

    def handle(record: Record) -> None:
        calls[record.offset] += 1
        if record.offset == 5 and calls[5] < 4:
            raise TimeoutError
        if record.offset % 30 == 5:
            order.append(record.offset)

    with consumer_of(topic) as consumer:
        consumer.assign([T0])
        pool = WorkerPool(consumer, handle, retries=3, retry_backoff_ms=1)
        pool.run(idle_timeout=0.2)
        assert pool.metrics()["records-retried-total"] == 3
        assert pool.metrics()["records-failed-total"] == 0
    assert calls[5] == 4
    assert order == sorted(order)


def test_stop_leaves_nothing_out(topic: ToyCluster) -> None:
    journal = Journal()

    def handle(record: Record) -> None:
        journal(record)
        if journal.count == 300:
            pool.stop()

    with consumer_of(topic, "t") as consumer:
        pool = WorkerPool(consumer, handle, workers=4, max_in_flight=100)
        pool.run()
        assert 300 <= journal.count < 1200
        handled = {(key, offset) for key, offsets in journal.by_key.items() for offset in offsets}
        pool.run(idle_timeout=0.2)
    again = [(key, offset) for key, offsets in journal.by_key.items() for offset in offsets]
    assert len(set(again)) == 1200
    assert len(again) - len(set(again)) <= len(handled)  # only what was finished out of order comes again


def test_a_record_that_cannot_be_deserialized_ends_run_at_its_place(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    fill(cluster, "t", 0, [b"1", b"2", b"{", b"4"])
    seen: list[Any] = []
    with consumer_of(cluster, "t", value_deserializer="json") as consumer:
        pool = WorkerPool(consumer, lambda record: seen.append(record.value), workers=1)
        with pytest.raises(RecordDeserializationFailed) as caught:
            pool.run(idle_timeout=0.2)
        consumer.seek(T0, int(str(caught.value.details["offset"])) + 1)
        pool.run(idle_timeout=0.2)
    assert list(dict.fromkeys(seen)) == [1, 2, 4]


def test_partitions_move_without_two_handlers_of_a_key(topic: ToyCluster) -> None:
    with_coordinator(topic)
    journal = Journal(pause_s=0.01)
    options = {"group_id": "g", "session_timeout_ms": 1_000, "heartbeat_interval_ms": 50, "auto_commit_interval_ms": 50}
    errors: list[BaseException] = []
    pools: list[WorkerPool] = []

    def member() -> None:
        try:
            with consumer_of(topic, "t", **options) as consumer:
                pool = WorkerPool(consumer, journal, workers=4, max_in_flight=100)
                pools.append(pool)
                pool.run()
        except BaseException as error:  # shown by the test, which runs on another thread
            errors.append(error)

    first = threading.Thread(target=member)
    first.start()
    wait_for(lambda: journal.count > 100, "the first member handles records")
    second = threading.Thread(target=member)
    second.start()
    wait_for(lambda: journal.count >= 1200 or errors, "all is handled", 30)
    for pool in pools:
        pool.stop()
    first.join(10)
    second.join(10)
    assert not errors
    assert all(pool.metrics()["records-handled-total"] > 0 for pool in pools)
    assert not journal.breaches
    everything = {(key, offset) for key, offsets in journal.by_key.items() for offset in offsets}
    first_times = [list(dict.fromkeys(offsets)) for offsets in journal.by_key.values()]
    assert all(offsets == sorted(offsets) for offsets in first_times)
    assert len(everything) == 1200


def test_a_slow_handler_does_not_lose_the_membership(topic: ToyCluster) -> None:
    coordinator = with_coordinator(topic)
    options = {"group_id": "g", "session_timeout_ms": 600, "heartbeat_interval_ms": 50, "max_poll_interval_ms": 700}
    assignments: list[int] = []
    with consumer_of(topic, **options) as consumer:
        consumer.subscribe(["t"], on_assigned=lambda held: assignments.append(len(held)))
        pool = WorkerPool(consumer, lambda record: time.sleep(0.05), workers=2, max_in_flight=4)
        pool.run(timeout=2.0)
    assert assignments == [2]
    assert coordinator is not None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 0}, "workers"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"retries": -1}, "retries"),
        ({"order": "keys"}, "did you mean 'key'"),
    ],
)
def test_values_without_sense_are_refused(cluster: ToyCluster, options: dict[str, Any], sentence: str) -> None:
    with consumer_of(cluster) as consumer, pytest.raises(InvalidConfig, match=sentence):
        WorkerPool(consumer, print, **options)


def test_a_consumer_that_commits_by_itself_is_refused(cluster: ToyCluster) -> None:
    options = {"group_id": "g", "enable_auto_commit": True}
    with consumer_of(cluster, **options) as consumer, pytest.raises(InvalidConfig, match="enable_auto_commit=False"):
        WorkerPool(consumer, print)


def test_a_coroutine_is_no_handler(cluster: ToyCluster) -> None:
    async def coroutine(record: Record) -> None: ...

    with consumer_of(cluster) as consumer, pytest.raises(InvalidConfig, match="not a coroutine's"):
        WorkerPool(consumer, coroutine)


def test_run_is_for_one_call_at_a_time(topic: ToyCluster) -> None:
    refused: list[BaseException] = []

    def handle(record: Record) -> None:
        try:
            pool.run()
        except InvalidRequest as error:
            refused.append(error)
            pool.stop()

    with consumer_of(topic, "t") as consumer:
        pool = WorkerPool(consumer, handle, workers=1)
        pool.run()
    assert "runs already" in str(refused[0])


def test_the_time_before_the_group_has_taken_the_consumer_in_is_not_idle(topic: ToyCluster) -> None:
    coordinator, journal = with_coordinator(topic), Journal()
    coordinator.is_loading = True
    with consumer_of(topic, "t", group_id="g") as consumer:
        pool = WorkerPool(consumer, journal, workers=2)
        running = threading.Thread(target=pool.run, kwargs={"idle_timeout": 0.3})
        running.start()
        began_s = time.monotonic()
        wait_for(lambda: time.monotonic() - began_s > 0.6 and coordinator.requests_seen, "it tries to join for long")
        assert running.is_alive()
        coordinator.is_loading = False
        running.join(60)
        assert not running.is_alive()
    assert journal.count == 1200
