"""Topics that are created by their use, in a cluster with `auto.create.topics.enable`."""

from typing import Any

import pytest

from raylog.base.errors import UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.cluster.deadline import Deadline
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from tests.unit.client.consumer_support import read, with_coordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for


@pytest.fixture
def creating(cluster: ToyCluster) -> ToyCluster:
    cluster.do(lambda: setattr(cluster, "creates_topics", True))
    return cluster


def test_a_misspelt_name_is_an_error_by_default(cluster: ToyCluster) -> None:
    cluster.create_topic("orders")
    with Producer(**cluster.options) as producer, pytest.raises(UnknownTopicOrPartition, match="did you mean 'orders'"):
        producer.send("order", b"x")
    assert set(cluster.topics) == {"orders"}


def test_a_producer_creates_the_topic_that_it_sends_to(creating: ToyCluster) -> None:
    with Producer(**creating.options) as producer:
        assert producer.send("new", b"x").result(10).offset == 0
        assert producer.partitions_for("newer") == {0}
    assert set(creating.topics) == {"new", "newer"}


@pytest.mark.parametrize("options", [{}, {"group_id": "g"}])
def test_a_consumer_creates_the_topic_that_it_subscribes_to(creating: ToyCluster, options: dict[str, Any]) -> None:
    with_coordinator(creating)
    with Consumer("new", **creating.options, auto_offset_reset="earliest", **options) as consumer:
        wait_for(lambda: consumer.poll(20) or consumer.assignment(), "the topic is assigned")
        assert consumer.assignment() == {TopicPartition("new", 0)}
        with Producer(**creating.options) as producer:
            producer.send("new", b"x")
        assert [record.value for record in read(consumer, 1)] == [b"x"]


def test_a_consumer_may_be_kept_from_it(creating: ToyCluster) -> None:
    options = {**creating.options, "allow.auto.create.topics": "false"}
    with Consumer(config=options) as consumer, pytest.raises(UnknownTopicOrPartition):
        consumer.partitions_for_topic("new")
    assert not creating.topics


def test_neither_commits_nor_administration_create_topics(creating: ToyCluster) -> None:
    with_coordinator(creating)
    with Consumer(**creating.options, group_id="g") as consumer, pytest.raises(UnknownTopicOrPartition):
        consumer.commit({TopicPartition("old", 0): 5})
    with Admin(**creating.options) as admin, pytest.raises(UnknownTopicOrPartition):
        admin.describe_topics(["old"])
    with Producer(**creating.options) as producer, pytest.raises(UnknownTopicOrPartition):
        producer.send("__consumer_offsets", b"x")
    assert not creating.topics


def test_another_client_may_create_it_at_the_same_time(creating: ToyCluster) -> None:
    creating.create_topic("new", partitions=3)
    with Producer(**creating.options) as producer:
        found = producer._runtime.run(_create(producer))
        assert len(found.partitions) == 3


async def _create(producer: Producer) -> Any:
    cluster = producer._engine.cluster
    await cluster._create("new", Deadline(5))
    return await cluster.topic("new", timeout_s=5)
