"""A producer forgets topics that were deleted: what it keeps of them does not grow."""

from raylog.client.producer.producer import Producer
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for


def test_deleted_topics_leave_nothing(cluster: ToyCluster) -> None:
    with Producer(**cluster.options, metadata_max_age_ms=100) as producer:
        for number in range(20):
            name = f"job-{number}"
            cluster.create_topic(name)
            producer.send(name, b"x").result(10)
            cluster.delete_topic(name)
        engine = producer._engine
        kept = (
            engine.cluster._wanted,
            engine.accumulator.topic_queues_by_name,
            engine._sender._deliveries,
            engine._sender._context.counts.topics,
        )
        wait_for(lambda: not any(kept), f"nothing is kept: {kept}")
        cluster.create_topic("job-0")
        assert producer.send("job-0", b"again").result(10).offset == 0


def test_a_topic_with_records_that_wait_is_kept(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, metadata_max_age_ms=100, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        accumulator = producer._engine.accumulator
        assert not accumulator.forget("t")
        assert "t" in accumulator.topic_queues_by_name
        producer.flush(10)
        assert future.result(0).offset == 0
