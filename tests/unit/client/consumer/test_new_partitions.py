"""Topics and partitions that come while clients live: no earlier look-up proves that they do not exist."""

import time

import pytest

from raylog.base.errors import UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from raylog.protocol.broker import MetadataTopic
from tests.unit.client.consumer_support import fill, numbers, offsets, read
from tests.unit.client.toy_server import ToyCluster

OLD, NEW = TopicPartition("t", 0), TopicPartition("t", 1)
AGE_MS = 300_000


@pytest.fixture
def topic(cluster: ToyCluster) -> ToyCluster:
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    return cluster


def add_partition(cluster: ToyCluster, answers_late: int = 0) -> None:
    """Add one with five records. So many of the brokers' next answers do not name it yet."""
    before = cluster._describe("t")
    describe, left = cluster._describe, [answers_late]
    cluster.create_partitions("t", 2)
    fill(cluster, "t", 1, numbers(0, 5))

    def lagging(name: str) -> MetadataTopic:
        left[0] -= 1
        return before if left[0] >= 0 else describe(name)

    cluster.do(lambda: setattr(cluster, "_describe", lagging))


@pytest.mark.parametrize("answers_late", [0, 2])
def test_a_new_partition_that_is_assigned_is_read(topic: ToyCluster, answers_late: int) -> None:
    with Consumer(**topic.options, auto_offset_reset="earliest", metadata_max_age_ms=AGE_MS) as consumer:
        consumer.assign([OLD])
        read(consumer, 3)
        add_partition(topic, answers_late)
        consumer.assign([OLD, NEW])
        assert offsets(read(consumer, 5)) == [0, 1, 2, 3, 4]
        assert consumer.position(NEW) == 5


@pytest.mark.parametrize("answers_late", [0, 2])
def test_look_ups_and_sends_find_a_new_partition(topic: ToyCluster, answers_late: int) -> None:
    options = {**topic.options, "metadata_max_age_ms": AGE_MS}
    with Consumer(**options) as consumer, Admin(**options) as admin, Producer(**options) as producer:
        assert consumer.end_offsets([OLD]) == {OLD: 3}
        producer.send("t", b"x", partition=0).result(10)
        admin.describe_topic("t")
        add_partition(topic, answers_late)
        assert producer.send("t", b"x", partition=1).result(10).offset == 5
        assert consumer.end_offsets([NEW]) == {NEW: 6}
        found = consumer.offsets_for_times({NEW: 2})[NEW]
        assert found is not None
        assert found.offset == 2
        assert admin.delete_records({NEW: 4}) == {NEW: 4}


def test_a_partition_that_is_never_added_is_soon_an_error(topic: ToyCluster) -> None:
    with Consumer(**topic.options) as consumer, Producer(**topic.options) as producer:
        began_s = time.monotonic()
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, not 7"):
            consumer.end_offsets([TopicPartition("t", 7)])
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, not 7"):
            producer.send("t", b"x", partition=7)
        assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("by_pattern", [False, True])
def test_a_consumer_without_a_group_reads_new_partitions_within_seconds(topic: ToyCluster, by_pattern: bool) -> None:
    with Consumer(**topic.options, auto_offset_reset="earliest", metadata_max_age_ms=AGE_MS) as consumer:
        if by_pattern:
            consumer.subscribe(pattern="t|u")
        else:
            consumer.subscribe(["t"])
        read(consumer, 3)
        add_partition(topic)
        assert offsets(read(consumer, 5)) == [0, 1, 2, 3, 4]
        if by_pattern:
            topic.create_topic("u")
            fill(topic, "u", 0, numbers(0, 4))
            assert offsets(read(consumer, 4)) == [0, 1, 2, 3]


def test_an_unchanged_cluster_is_not_described_again(topic: ToyCluster) -> None:
    with Consumer(**topic.options, auto_offset_reset="earliest") as consumer:
        cluster = consumer._engine.cluster
        version = consumer._runtime.run(cluster.refresh_since(None, -1, timeout_s=10))
        assert version == topic.version
        described: list[str] = []
        describe = topic._describe

        def noted(name: str) -> MetadataTopic:
            described.append(name)
            return describe(name)

        topic.do(lambda: setattr(topic, "_describe", noted))
        assert consumer._runtime.run(cluster.refresh_since(None, version, timeout_s=10)) == version
        assert not described
        topic.create_topic("u")
        assert consumer._runtime.run(cluster.refresh_since(None, version, timeout_s=10)) == topic.version
        assert described == ["t", "u"]
        assert cluster.metadata.topic("u") is not None
