"""What a client keeps of topics that are deleted while it runs."""

from typing import Any

import pytest

from raylog.client.consumer.consumer import Consumer
from raylog.client.producer import sender
from raylog.client.producer.producer import Producer
from tests.unit.client.consumer_support import fill, numbers
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

TOPICS = 30
QUICK: dict[str, Any] = {"metadata_max_age_ms": 50, "max_block_ms": 200}


def test_a_producer_forgets_deleted_topics(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "KEPT_DELETED_S", 0.0)
    cluster.create_topic("kept")
    with Producer(**cluster.options, **QUICK) as producer:
        producer.send("kept", b"x").result(10)
        for number in range(TOPICS):
            name = f"job-{number}"
            cluster.create_topic(name, partitions=3)
            producer.send(name, b"x").result(10)
            cluster.delete_topic(name)
        engine = producer._engine

        def forgotten() -> bool:
            producer._runtime.call_soon(engine._sender.forget_deleted)
            return len(engine.cluster._wanted) == 1

        wait_for(forgotten, "the deleted topics are forgotten", 20)
        assert set(engine.accumulator.topic_queues_by_name) == {"kept"}
        assert {queue.topic for queue in engine._sender._deliveries} == {"kept"}
        assert set(engine._sender.topic_metrics()) == {"kept"}
        cluster.create_topic("job-0")
        assert producer.send("job-0", b"again").result(10).offset == 0
        assert producer.send("kept", b"y").result(10).offset == 1


def test_records_that_wait_keep_their_topic(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "KEPT_DELETED_S", 0.0)
    cluster.create_topic("t")
    with Producer(**cluster.options, metadata_max_age_ms=50, max_block_ms=50, linger_ms=2_000) as producer:
        producer.send("t", b"x").result(10)
        waits = producer.send("t", b"y")
        cluster.delete_topic("t")
        wait_for(lambda: producer._engine.cluster.metadata.topic("t") is None, "the client knows", 10)
        assert "t" in producer._engine.accumulator.topic_queues_by_name
        cluster.create_topic("t")
        assert waits.result(20).offset == 0


def test_a_pattern_forgets_deleted_topics(cluster: ToyCluster) -> None:
    with Consumer(**cluster.options, metadata_max_age_ms=50, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(pattern="run-.*")
        for number in range(5):
            name = f"run-{number}"
            cluster.create_topic(name)
            fill(cluster, name, 0, numbers(0, 1))
            wait_for(lambda: consumer.poll(50), "its record", 10)
            cluster.delete_topic(name)
        wait_for(lambda: not consumer.poll(50) and not consumer.subscription(), "no topic matches", 10)
        wait_for(lambda: not consumer._engine.cluster._wanted, "none is watched", 10)
