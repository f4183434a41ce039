"""Topics that get more partitions."""

import pytest

from raylog.base.errors import (
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from tests.unit.core.controller.bench import T0, WAIT_MS, running_topic


def test_new_partitions_keep_the_replica_count_and_spread_their_leaders() -> None:
    bench = running_topic()
    before = bench.state()
    bench.grow(4)
    states = bench.image.topics["flights"].partitions
    assert [state.partition.partition for state in states] == [0, 1, 2, 3]
    assert states[0] == before, "what is there stays"
    assert {len(state.replicas) for state in states} == {3}
    assert {state.topic_id for state in states} == {bench.topic_id()}
    assert {state.replicas[0] for state in states[1:]} == {1, 2, 3}


def test_new_partitions_elect_their_preferred_leaders() -> None:
    bench = running_topic()
    bench.grow(2, assignment=[[3, 2, 1]])
    added = TopicPartition("flights", 1)
    bench.replica(1, added)
    assert bench.summary(added)[0] == -1, "its preferred leader is waited for"
    bench.replica(3, added)
    assert bench.summary(added) == (3, 1, (3, 1)), "and a majority serves without the last one"
    bench.wait(WAIT_MS + 1_000)
    assert bench.summary(T0)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"total": 0}, InvalidPartitions, "has 1 partitions and cannot have 0"),
        ({"total": 1}, InvalidPartitions, "has 1 partitions already"),
        ({"total": 10_001}, InvalidPartitions, "1 to 10000"),
        ({"total": 2, "topic": "flihgts"}, UnknownTopicOrPartition, "did you mean 'flights'"),
        ({"total": 3, "assignment": [[1, 2, 3]]}, InvalidRequest, "1 partitions, and 2"),
        ({"total": 2, "assignment": [[1, 2]]}, InvalidReplicationFactor, "2 brokers, not 3"),
        ({"total": 2, "assignment": [[1, 2, 2]]}, InvalidRequest, "twice"),
        ({"total": 2, "assignment": [[1, 2, 9]]}, InvalidRequest, "never registered"),
    ],
)
def test_an_illegal_number_adds_nothing(arguments: dict[str, object], error: type[Exception], words: str) -> None:
    bench = running_topic()
    with pytest.raises(error, match=words):
        bench.grow(**arguments)  # type: ignore[arg-type]
    assert len(bench.image.topics["flights"].partitions) == 1


def test_growth_needs_as_many_brokers_as_replicas() -> None:
    bench = running_topic()
    bench.lose(("broker", 3))
    with pytest.raises(InvalidReplicationFactor, match="2 brokers are online"):
        bench.grow(2)


def test_raylogs_own_topics_keep_their_number() -> None:
    bench = running_topic()
    bench.ensure()
    with pytest.raises(InvalidRequest, match="keeps its number"):
        bench.grow(50, "__consumer_offsets")
