"""Internal topics that are created on first use."""

import pytest

from raylog.base.errors import InvalidConfig, InvalidRequest
from raylog.core.controller.internal_topics import ON_FIRST_USE, SHARE_STATE_TOPIC
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.admin import EnsureInternalTopicRequest
from tests.unit.core.controller.bench import Bench, three_brokers
from tests.unit.core.controller.test_cluster_config import alter


def ensure(bench: Bench, topic: str = SCHEDULED_TOPIC) -> list[object]:
    return bench.call(EnsureInternalTopicRequest(topic=topic))


@pytest.mark.parametrize("topic", sorted(ON_FIRST_USE))
def test_the_first_use_creates_the_topic_with_three_replicas(topic: str) -> None:
    bench = three_brokers()
    topic_id, partitions = ensure(bench, topic)
    created = bench.image.topics[topic]
    assert (created.topic_id, len(created.partitions)) == (topic_id, partitions)
    assert sorted(created.partitions[0].replicas) == [1, 2, 3]
    assert created.internal


def test_later_uses_find_it() -> None:
    bench = three_brokers()
    assert ensure(bench) == ensure(bench)


def test_another_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="__scheduled"):
        ensure(three_brokers(), "__schedules")


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        (SCHEDULED_TOPIC, "scheduled.topic.num.partitions"),
        (SHARE_STATE_TOPIC, "share.coordinator.state.topic.num.partitions"),
    ],
)
def test_a_setting_says_how_many_partitions_a_topic_gets(topic: str, key: str) -> None:
    bench = three_brokers()
    alter(bench, {key: 4})
    assert ensure(bench, topic)[1] == 4
    with pytest.raises(InvalidConfig, match="exists"):
        alter(bench, {key: 5})
