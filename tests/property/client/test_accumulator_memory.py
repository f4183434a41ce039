"""The producer's memory: whatever is sent wherever, it is never exceeded, counted to the byte, and given back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.client.cluster.metadata import PartitionInfo, TopicInfo
from raylog.client.config import ProducerConfig, load
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.sizes import RECORD_OVERHEAD_BYTES

PARTITIONS = 4
TOPIC = TopicInfo(
    topic_id="t" * 32,
    name="t",
    internal=False,
    partitions=tuple(PartitionInfo(partition, 1, 0, "host", 1, (1,), (1,)) for partition in range(PARTITIONS)),
    config={},
    version=0,
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1), st.integers(0, 700)),
        st.tuples(st.just("take"), st.integers(0, PARTITIONS - 1), st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


@settings(max_examples=100, deadline=None)
@given(
    actions=ACTIONS, batch_size=st.sampled_from([1, 100, 1_000, 16_384]), memory=st.sampled_from([800, 3_000, 10**6])
)
def test_memory_is_never_exceeded_is_counted_to_the_byte_and_comes_back(
    actions: list[tuple[str, int, int]], batch_size: int, memory: int
) -> None:
    config = load(
        ProducerConfig, None, {"bootstrap": "host:1", "batch_size": batch_size, "buffer_memory": memory, "linger_ms": 9}
    )
    accumulator = Accumulator(config, lambda: None)
    topic_queues = accumulator.topic_queues(TOPIC)
    appended = taken = 0
    for what, number, size in actions:
        queue = topic_queues.queues[number]
        if what == "append":
            future = accumulator.append(topic_queues, None, b"v" * size, None, number, 0)
            record = RECORD_OVERHEAD_BYTES + size
            if future is None:
                assert accumulator._buffered + record - (queue.open.room if queue.open else 0) > memory
            else:
                appended += record
        elif what == "take":
            batch = accumulator.take(queue, 0.0)
            if batch is not None:
                assert batch.size == sum(RECORD_OVERHEAD_BYTES + len(value or b"") for value in batch.values)
                assert batch.size <= queue.limit or len(batch.values) == 1
                accumulator.release(queue, batch.size)
                taken += batch.size
        else:
            accumulator.seal_all()
        assert accumulator._buffered <= memory
        assert accumulator.buffered_bytes == appended - taken
    accumulator.seal_all()
    assert accumulator._buffered == appended - taken
