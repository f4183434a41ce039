"""A producer keeps a topic that was deleted while records of it wait."""

from raylog.client.producer.producer import Producer
from tests.unit.client.toy_server import ToyCluster


def test_a_topic_with_records_that_wait_is_kept(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, metadata_max_age_ms=100, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        accumulator = producer._engine.accumulator
        assert not accumulator.forget("t")
        assert "t" in accumulator.topic_queues_by_name
        producer.flush(10)
        assert future.result(0).offset == 0
