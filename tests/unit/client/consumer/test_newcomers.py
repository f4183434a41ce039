"""What is born after the subscription began is read from its start, whatever auto_offset_reset says."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from raylog.base.errors import NoOffsetForPartition
from raylog.base.ids import TopicPartition
from raylog.client.cluster.metadata import MetadataCache, TopicInfo
from raylog.client.consumer.consumer import Consumer
from raylog.client.consumer.newcomers import Newcomers, added_later
from tests.unit.client.consumer_support import DEADLINE_S, fill, numbers, offsets, read, with_coordinator
from tests.unit.client.toy_server import ToyCluster

KINDS: dict[str, dict[str, Any]] = {
    "alone": {},
    "consumer protocol": {"group_id": "board"},
    "classic protocol": {"group_id": "board", "group_protocol": "classic"},
}


@pytest.fixture
def cluster(cluster: ToyCluster) -> ToyCluster:
    with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    return cluster


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@contextmanager
def reading(cluster: ToyCluster, kind: dict[str, Any], *topics: str, **options: Any) -> Iterator[Consumer]:
    """A consumer at the end of t-0."""
    given = {**cluster.options, "metadata_max_age_ms": 300, "heartbeat_interval_ms": 50, **kind, **options}
    with Consumer(**given) as consumer:
        if topics:
            consumer.subscribe(topics)
        else:
            consumer.subscribe(pattern="[tu]")
        poll_until(consumer, lambda: TopicPartition("t", 0) in consumer.assignment())
        assert consumer.position(TopicPartition("t", 0)) == 3
        yield consumer


def poll_until(consumer: Consumer, condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        assert consumer.poll(50) == {}


@pytest.mark.parametrize("topics", [("t",), ()])
def test_partitions_that_are_added_are_read_whole(
    cluster: ToyCluster, kind: dict[str, Any], topics: tuple[str, ...]
) -> None:
    with reading(cluster, kind, *topics) as consumer:
        cluster.create_partitions("t", 3)
        for number in (1, 2):
            fill(cluster, "t", number, numbers(0, 5))
        assert sorted(offsets(read(consumer, 10))) == sorted([*range(5), *range(5)])
        assert consumer.poll(50) == {}  # t-0 was not begun again


@pytest.mark.parametrize("topics", [("t", "u"), ()])
def test_a_topic_that_is_created_later_is_read_whole(
    cluster: ToyCluster, kind: dict[str, Any], topics: tuple[str, ...]
) -> None:
    if topics and not kind:
        pytest.skip("without a group a topic that does not exist is an error")
    with reading(cluster, kind, *topics) as consumer:
        cluster.create_topic("u")
        fill(cluster, "u", 0, numbers(0, 5))
        assert offsets(read(consumer, 5)) == [0, 1, 2, 3, 4]


def test_a_topic_that_is_created_again_is_read_whole(cluster: ToyCluster, kind: dict[str, Any]) -> None:
    with reading(cluster, kind, "t") as consumer:
        fill(cluster, "t", 0, numbers(3, 6))
        read(consumer, 3)
        cluster.delete_topic("t")
        cluster.create_topic("t")
        fill(cluster, "t", 0, numbers(0, 5))
        assert offsets(read(consumer, 5)) == [0, 1, 2, 3, 4]
        assert consumer.highwater(TopicPartition("t", 0)) == 5
        assert consumer.current_lag(TopicPartition("t", 0)) == 0


def test_a_partition_that_is_assigned_by_hand_follows_its_topic(cluster: ToyCluster) -> None:
    with Consumer(**cluster.options, metadata_max_age_ms=300) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert consumer.position(TopicPartition("t", 0)) == 3
        consumer.poll(100)
        cluster.delete_topic("t")
        cluster.create_topic("t")
        fill(cluster, "t", 0, numbers(0, 5))
        assert offsets(read(consumer, 5)) == [0, 1, 2, 3, 4]


def test_what_was_added_while_the_group_was_away_is_read_whole(cluster: ToyCluster) -> None:
    cluster.create_partitions("t", 2)
    fill(cluster, "t", 1, numbers(0, 3))
    with reading(cluster, KINDS["consumer protocol"], "t") as consumer:
        poll_until(consumer, lambda: len(consumer.assignment()) == 2)
        consumer.position(TopicPartition("t", 1))
        consumer.commit()
    cluster.create_partitions("t", 4)
    for number in (2, 3):
        fill(cluster, "t", number, numbers(0, 5))
    with Consumer("t", **cluster.options, group_id="board") as consumer:
        assert sorted(offsets(read(consumer, 10))) == sorted([*range(5), *range(5)])
        assert consumer.poll(50) == {}


def test_a_new_group_skips_what_was_there(cluster: ToyCluster) -> None:
    cluster.create_partitions("t", 2)
    fill(cluster, "t", 1, numbers(0, 4))
    with Consumer("t", **cluster.options, group_id="board") as consumer:
        poll_until(consumer, lambda: len(consumer.assignment()) == 2)
        assert consumer.position(TopicPartition("t", 1)) == 4


def test_without_a_policy_a_new_partition_is_an_error(cluster: ToyCluster) -> None:
    with Consumer("t", **cluster.options, auto_offset_reset="none", metadata_max_age_ms=300) as consumer:
        with pytest.raises(NoOffsetForPartition, match="t-0"):
            read(consumer, 1)
        consumer.seek(TopicPartition("t", 0), 1)
        assert offsets(read(consumer, 2)) == [1, 2]
        cluster.create_partitions("t", 2)
        fill(cluster, "t", 1, numbers(0, 5))
        with pytest.raises(NoOffsetForPartition, match="t-1"):
            read(consumer, 1)


def test_a_partition_without_a_leader_holds_up_no_other(cluster: ToyCluster) -> None:
    cluster.create_topic("v", partitions=4, replication_factor=1)
    for number in range(4):
        fill(cluster, "v", number, numbers(0, 5))
    cluster.do(lambda: cluster.leaderless.add(("v", 1)))
    for name, kind in KINDS.items():
        given = {**kind, "group_id": name} if kind else kind
        with Consumer("v", **cluster.options, **given, auto_offset_reset="earliest") as consumer:
            assert sorted(offsets(read(consumer, 15, deadline_s=10))) == sorted([*range(5)] * 3)
    with Consumer("v", **cluster.options, auto_offset_reset="earliest") as consumer:
        read(consumer, 15, deadline_s=10)
        cluster.do(cluster.leaderless.clear)
        assert offsets(read(consumer, 5)) == [0, 1, 2, 3, 4]


def known(cache: MetadataCache, **topics: int) -> None:
    """The cache has these topics, with so many partitions."""
    rows: tuple[Any, ...] = (None,) * 9
    cache.topics = {
        name: TopicInfo(f"id {name}", name, internal=False, partitions=rows[:count], config={}, version=1)
        for name, count in topics.items()
    }


def test_what_is_noted_of_topics_outlives_a_change_of_the_subscription() -> None:
    cache = MetadataCache()
    newcomers = Newcomers(cache)
    known(cache, a=1)
    assert newcomers.follow_topics(["a", "b"]) == ["a", "b"]
    newcomers.note(["a", "b"])
    known(cache, a=2, b=1, c=1)
    assert [newcomers.is_new(TopicPartition("a", number)) for number in (0, 1)] == [False, True]
    assert newcomers.is_new(TopicPartition("b", 0))
    assert newcomers.follow_topics(["a", "c"]) == ["c"]
    newcomers.note(["c"])
    assert newcomers.is_new(TopicPartition("a", 1))
    assert not newcomers.is_new(TopicPartition("c", 0))
    newcomers.forget()
    assert not newcomers.is_new(TopicPartition("a", 1))


@pytest.mark.parametrize(
    ("committed", "later"),
    [
        ({0: 1, 1: 1, 2: None, 3: None}, {2, 3}),
        ({0: 1, 1: None}, {1}),
        ({0: None, 1: None}, set()),
        ({0: None, 1: 1, 2: None}, set()),
        ({0: 1, 1: None, 2: 1}, set()),
        ({0: 1, 1: 1}, set()),
        ({}, set()),
    ],
)
def test_partitions_above_all_committed_ones_were_added_later(
    committed: dict[int, int | None], later: set[int]
) -> None:
    assert added_later(committed) == later


def test_a_topic_that_matched_a_pattern_may_be_deleted(cluster: ToyCluster) -> None:
    cluster.create_topic("u")
    with Consumer(**cluster.options, metadata_max_age_ms=200, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(pattern="[tu]")
        read(consumer, 3)
        poll_until(consumer, lambda: len(consumer.assignment()) == 2)
        cluster.delete_topic("u")
        poll_until(consumer, lambda: consumer.assignment() == {TopicPartition("t", 0)})


@pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))
def test_the_same_subscription_again_changes_nothing(cluster: ToyCluster, kind: dict[str, Any]) -> None:
    calls: list[object] = []
    with reading(cluster, kind) as consumer:
        tasks = len(consumer._engine._tasks)
        for _ in range(20):
            consumer.subscribe(pattern="[tu]", on_assigned=calls.append, on_revoked=calls.append)
            assert consumer.subscription() == {"t"}
            consumer.poll(20)
        assert len(consumer._engine._tasks) <= tasks
        consumer.subscribe(pattern="t|x", on_assigned=calls.append, on_revoked=calls.append)
        assert consumer.subscription() == {"t"}
        for _ in range(10):
            consumer.poll(20)
        assert consumer.assignment() == {TopicPartition("t", 0)}
        assert len(consumer._engine._tasks) <= tasks
        assert not calls
