"""The metrics of producers and consumers."""

import pytest

from raylog.base.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.metrics import ClientMetrics
from raylog.client.producer.producer import Producer
from tests.unit.client.consumer_support import fill, numbers, read, with_coordinator
from tests.unit.client.toy_server import ToyCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_producer_counts_for_each_topic(cluster: ToyCluster) -> None:
    cluster.create_topic("a")
    cluster.create_topic("b")
    with Producer(**cluster.options) as producer:
        before = producer.metrics()
        for topic, count in (("a", 30), ("b", 10)):
            producer.send_batch(topic, [b"x" * 88] * count).result(10)
        found = producer.metrics()
    assert found["record-send-total"] == 40
    assert found["record-size-avg"] == 100  # with what a record counts beside its bytes
    assert found["record-queue-time-avg"] >= 0
    assert {topic: values["record-send-total"] for topic, values in found.topics.items()} == {"a": 30, "b": 10}
    assert found.topics["a"]["byte-total"] == 3000
    assert found.topics["a"]["record-error-total"] == 0
    rates = found.since(before)
    assert rates["record-send-rate"] * (found.taken_s - before.taken_s) == pytest.approx(40)
    assert rates.topics["b"]["byte-rate"] > 0
    assert "batch-size-avg" not in rates


def test_a_producer_counts_repetitions_for_each_topic(cluster: ToyCluster) -> None:
    cluster.create_topic("a")
    cluster.set_faults("a", 0, [NotLeaderOrFollower.code])
    with Producer(**cluster.options) as producer:
        producer.send("a", b"x").result(10)
        found = producer.metrics()
    assert found.topics["a"]["record-retry-total"] == found["record-retry-total"] == 1


def test_a_consumer_counts_what_it_has_read_and_committed(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=2)
    with_coordinator(cluster)
    fill(cluster, "t", 0, numbers(0, 100))
    fill(cluster, "t", 1, numbers(0, 50))
    options = {**cluster.options, "group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(**options) as consumer:
        consumer.assign([T0, T1])
        before = consumer.metrics()
        read(consumer, 150)
        consumer.commit()
        with pytest.raises(UnknownTopicOrPartition):
            consumer.commit({TopicPartition("none", 0): 1})
        found = consumer.metrics()
        assert found["records-consumed-total"] == 150
        assert found["bytes-consumed-total"] > 150
        assert (found["commit-total"], found["commit-error-total"]) == (1, 1)
        assert found["commit-latency-max"] >= found["commit-latency-avg"] > 0
        assert found.partitions[T0]["records-consumed-total"] == 100
        assert {**found.partitions[T1], "bytes-consumed-total": 0} == {
            "records-lag": 0,
            "records-lead": 50,
            "position": 50,
            "records-consumed-total": 50,
            "bytes-consumed-total": 0,
            "fetch-buffered-bytes": 0,
        }
        assert found.since(before).partitions[T0]["records-consumed-rate"] > 0
        consumer.assign([T0])
        assert consumer.metrics()["records-consumed-total"] == 150, "what was read stays counted"
        assert list(consumer.metrics().partitions) == [T0]


def test_a_snapshot_is_a_mapping() -> None:
    found = ClientMetrics({"a-total": 3.0, "b-avg": 1.0}, 10.0)
    assert dict(found) == {"a-total": 3.0, "b-avg": 1.0}
    assert len(found) == 2
    assert "a-total" in repr(found)
    assert dict(found.since(ClientMetrics({"a-total": 1.0}, 9.5))) == {"a-rate": 4.0}
    with pytest.raises(ValueError, match="must be an earlier one"):
        found.since(found)
