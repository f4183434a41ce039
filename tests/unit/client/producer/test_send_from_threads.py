"""`send()` from several threads at once, while batches are closed and sent: nothing is lost, doubled or mixed up."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from raylog.client.producer.batch import Batch
from raylog.client.producer.futures import SendFuture
from raylog.client.producer.producer import Producer
from raylog.client.spinlock import Spinlock
from tests.unit.client.toy_server import ToyCluster

THREADS = 4
RECORDS = 3_000
JOIN_S = 60


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """The interpreter changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], None]) -> None:
    """Run `work(number)` in several threads at once; raises what one of them raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # also a failed assertion: it is raised again in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def send_all(producer: Producer, how: str, number: int) -> list[tuple[bytes, bytes | None, SendFuture]]:
    """Send a thread's records one way or all ways in turns; what was sent, in order."""
    sent = []
    for count in range(RECORDS):
        value = b"%d-%d" % (number, count)
        key = b"%d" % (count % 7) if how == "keyed" or (how == "mixed" and count % 3 == 0) else None
        headers = [("h", value)] if how == "mixed" and count % 50 == 0 else None
        sent.append((value, key, producer.send("t", value, key, headers)))
    return sent


@pytest.mark.usefixtures("hasty_threads")
@pytest.mark.parametrize("how", ["plain", "keyed", "mixed"])
@pytest.mark.parametrize(("partitions", "batch_size"), [(1, 400), (3, 400), (3, 16_384)])
def test_each_record_is_stored_once_with_its_key_in_its_threads_order(
    cluster: ToyCluster, how: str, partitions: int, batch_size: int
) -> None:
    cluster.create_topic("t", partitions)
    sent: list[list[tuple[bytes, bytes | None, SendFuture]]] = [[] for _ in range(THREADS)]
    with Producer(**cluster.options, batch_size=batch_size, linger_ms=0) as producer:

        def work(number: int) -> None:
            sent[number] = send_all(producer, how, number)

        together(work)
        producer.flush(30)
        assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory
    stored = {
        (number, offset): (key, value)
        for number in range(partitions)
        for offset, key, value in cluster.records("t", number)
    }
    assert len(stored) == THREADS * RECORDS
    places = Counter(
        (item.partition, item.offset) for records in sent for *_, future in records for item in [future.result(0)]
    )
    assert places.keys() == stored.keys()
    assert set(places.values()) == {1}
    for records in sent:
        last: dict[int, int] = {}
        for value, key, future in records:
            one = future.result(0)
            assert stored[one.partition, one.offset] == (key, value)
            assert one.offset > last.get(one.partition, -1)
            last[one.partition] = one.offset


@pytest.mark.usefixtures("hasty_threads")
def test_memory_is_counted_to_the_byte_from_any_thread(cluster: ToyCluster) -> None:
    cluster.create_topic("t", 2)
    memory = 20_000
    with Producer(**cluster.options, batch_size=500, buffer_memory=memory, linger_ms=0) as producer:

        def work(number: int) -> None:
            for count in range(RECORDS // 3):
                producer.send("t", b"%d" % number * (1 + count % 90))
                assert producer._accumulator._buffered <= memory

        together(work)
        producer.flush(30)
        assert producer.metrics()["buffer-available-bytes"] == memory
        assert producer.metrics()["record-send-total"] == THREADS * (RECORDS // 3)


def test_a_record_carries_the_millisecond_in_which_it_was_sent(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, linger_ms=60_000, batch_size=1 << 20) as producer:  # one batch, open all the time
        moments = []
        milliseconds: set[int] = set()  # a loaded machine may pass over many of them
        deadline_s = time.monotonic() + 10
        while len(milliseconds) <= 20 and time.monotonic() < deadline_s:
            before_ms = time.time_ns() // 1_000_000
            future = producer.send("t", b"x")
            after_ms = time.time_ns() // 1_000_000
            moments.append((before_ms, future, after_ms))
            if before_ms == after_ms:
                milliseconds.add(after_ms)
        assert len({future._batch for _, future, _ in moments}) == 1
        producer.flush(30)
        for before_ms, future, after_ms in moments:
            assert before_ms <= future.result(0).timestamp_ms <= after_ms
    (_, columns), *rest = cluster.do(cluster.partitions["t", 0].columns)
    assert not rest
    assert columns.timestamps == [future.result(0).timestamp_ms for _, future, _ in moments]
    assert len(set(columns.timestamps)) > 10


def test_a_record_whose_adding_is_interrupted_leaves_the_columns_even() -> None:
    batch = Batch("t", 0, 0.0, 9.0, None)
    batch.add(b"k", b"v", [("h", b"x")], 1)

    class Interrupting(list[bytes | None]):
        def append(self, value: bytes | None) -> None:
            raise KeyboardInterrupt

    whole, batch.values = batch.values, Interrupting(batch.values)
    with pytest.raises(KeyboardInterrupt):
        batch.add(b"lost", b"lost", [("lost", b"")], 2)
    batch.values = whole
    assert batch.add(b"m", b"w", None, 3) == 1
    assert (batch.keys, batch.values, batch.headers) == ([b"k", b"m"], [b"v", b"w"], [[("h", b"x")], None])


@pytest.mark.usefixtures("hasty_threads")
def test_a_turn_is_held_by_one_thread_at_a_time() -> None:
    turn, count = Spinlock(), 0

    def work(_: int) -> None:
        nonlocal count
        for _ in range(2_000):
            with turn:
                seen = count
                sum(range(10))  # a call, at which the interpreter may change threads
                count = seen + 1

    together(work)
    assert count == THREADS * 2_000
    assert turn.free
