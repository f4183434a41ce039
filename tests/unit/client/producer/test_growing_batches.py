"""Batches grow with what is under way of their partition, and no further; without a queue nothing is held back."""

from raylog.client.cluster.metadata import PartitionInfo, TopicInfo
from raylog.client.config import ProducerConfig, load
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.partition_queues import PartitionQueue
from raylog.client.producer.sizes import RECORD_OVERHEAD_BYTES

BATCH_BYTES = 1_000
LIMIT_BYTES = 4_000
RECORD = b"v" * (100 - RECORD_OVERHEAD_BYTES)
LATE_S = float("inf")
TOPIC = TopicInfo("t" * 32, "t", False, (PartitionInfo(0, 1, 0, "host", 1, (1,), (1,)),), {}, 0)


class Stage:
    """A producer's accumulator with one partition."""

    def __init__(self) -> None:
        config = {"bootstrap": "h:1", "batch_size": BATCH_BYTES, "max_request_size": 4 * LIMIT_BYTES, "linger_ms": 9}
        self.woken = 0
        self.accumulator = Accumulator(load(ProducerConfig, None, config), self._wake)
        self.topic_queues = self.accumulator.topic_queues(TOPIC)
        self.queue: PartitionQueue = self.topic_queues.queues[0]

    def _wake(self) -> None:
        self.woken += 1

    def append(self, records: int) -> None:
        """Append so many hundreds of bytes."""
        for _ in range(records):
            assert self.accumulator.append(self.topic_queues, None, RECORD, None, None, 0) is not None

    def taken_bytes(self, now_s: float = 0.0) -> int:
        """The size of the batch that the sender gets; 0 when it has to wait."""
        batch = self.accumulator.take(self.queue, now_s)
        return 0 if batch is None else batch.size


def test_a_batch_of_batch_size_leaves_at_once_while_nothing_is_under_way() -> None:
    stage = Stage()
    stage.append(9)
    assert stage.taken_bytes() == 0
    stage.append(1)
    assert stage.taken_bytes() == BATCH_BYTES


def test_behind_what_is_under_way_a_batch_grows_to_its_size() -> None:
    stage = Stage()
    for size in (1_000, 1_000, 2_000, 4_000):
        stage.append(size // 100 - 1)
        assert stage.taken_bytes() == 0
        stage.append(1)
        assert stage.taken_bytes() == size


def test_a_batch_grows_no_further_than_its_limit() -> None:
    stage = Stage()
    stage.append(200)
    sizes = [stage.taken_bytes() for _ in range(5)]
    assert sizes == [LIMIT_BYTES] * 5


def test_linger_time_ends_the_wait_unless_a_full_limit_is_under_way() -> None:
    stage = Stage()
    stage.append(10)
    first = stage.taken_bytes()
    stage.append(3)
    assert stage.taken_bytes(LATE_S) == 300
    stage.append(40)
    assert stage.taken_bytes() == LIMIT_BYTES
    stage.append(3)
    assert stage.taken_bytes(LATE_S) == 0
    stage.accumulator.release(stage.queue, first)
    stage.accumulator.release(stage.queue, LIMIT_BYTES)
    assert stage.taken_bytes(LATE_S) == 300


def test_the_sender_is_woken_when_a_batch_gets_full_by_what_is_under_way() -> None:
    stage = Stage()
    stage.append(10)
    assert stage.taken_bytes() == BATCH_BYTES
    stage.append(20)
    assert stage.taken_bytes() == 2 * BATCH_BYTES
    stage.accumulator.begin_pass()
    stage.append(1)
    woken = stage.woken
    stage.accumulator.begin_pass()
    stage.accumulator.end_pass(0.0, ())
    stage.append(26)
    assert stage.woken == woken
    stage.append(3)
    assert stage.woken == woken + 1
    assert stage.taken_bytes() == 3 * BATCH_BYTES
