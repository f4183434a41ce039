"""Topics: names, creation, deletion, configuration."""

from collections.abc import Sequence
from typing import Any

import pytest

from raylog.base.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS
from raylog.core.controller.events import (
    StopReplica,
)
from raylog.core.controller.topics import validate_topic_name
from raylog.protocol.admin import AlterTopicConfigRequest, DeleteTopicRequest, DescribeConfigsRequest
from tests.unit.core.controller.bench import AWAKE, DEFAULTS, GRACE_MS, T0, Bench, running_topic, three_brokers


def delete(bench: Bench, topic: str = "flights") -> list[object]:
    return bench.call(DeleteTopicRequest(topic=topic))


def described(bench: Bench, topic: str | None) -> list[Any]:
    event = DescribeConfigsRequest(topic=topic)
    return bench.call(event)


def alter(
    bench: Bench, *, topic: str = "flights", set: dict[str, Any] | None = None, delete: Sequence[str] = ()
) -> list[object]:
    return bench.call(AlterTopicConfigRequest(topic, set or {}, delete))


# ---------------------------------------------------------------- names


@pytest.fixture
def bench() -> Bench:
    return three_brokers()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_legal_names(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\x00", "a\n"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(InvalidTopic):
        validate_topic_name(name)


def test_names_that_differ_in_dot_and_underscore_only_collide(bench: Bench) -> None:
    bench.create("a.b")
    with pytest.raises(InvalidTopic, match=r"'a\.b'"):
        bench.create("a_b")


def test_names_with_two_underscores_in_front_are_the_clusters_own() -> None:
    with pytest.raises(InvalidTopic):
        three_brokers().create("__mine")


# ---------------------------------------------------------------- creation


def test_a_topic_gets_the_defaults_for_what_is_not_given(bench: Bench) -> None:
    [topic_id] = bench.create()
    topic = bench.image.topics["flights"]
    assert topic.topic_id == topic_id
    assert [len(state.replicas) for state in topic.partitions] == [2, 2]
    assert topic.config == {}


def test_a_given_assignment_is_taken_as_it_is(bench: Bench) -> None:
    bench.create(assignment=[[3, 1], [2, 3]])
    assert [state.replicas for state in bench.image.topics["flights"].partitions] == [(3, 1), (2, 3)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"assignment": []}, InvalidPartitions),
        ({"assignment": [[]]}, InvalidReplicationFactor),
        ({"assignment": [[1, 2], [1]]}, InvalidReplicationFactor),
        ({"assignment": [[1, 1]]}, InvalidRequest),
        ({"assignment": [[1, 9]]}, InvalidRequest),
        ({"assignment": [[1]], "partitions": 2}, InvalidRequest),
        ({"assignment": [[1]], "replication_factor": 2}, InvalidReplicationFactor),
        ({"partitions": 0}, InvalidPartitions),
        ({"partitions": 10_001}, InvalidPartitions),
        ({"replication_factor": 0}, InvalidReplicationFactor),
        ({"replication_factor": 4}, InvalidReplicationFactor),
        ({"config": {"retention.sm": 1}}, InvalidConfig),
        ({"config": {"min.insync.replicas": 3}}, InvalidConfig),
    ],
)
def test_an_illegal_request_creates_nothing(bench: Bench, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        bench.create("flights", **arguments)
    assert bench.image.topics == {}


def test_a_topic_is_created_once(bench: Bench) -> None:
    bench.create()
    with pytest.raises(TopicAlreadyExists):
        bench.create()


def test_replicas_are_not_placed_on_brokers_that_are_offline(bench: Bench) -> None:
    bench.lose(("broker", 2))
    bench.create(partitions=6)
    used = {broker for state in bench.image.topics["flights"].partitions for broker in state.replicas}
    assert used == {1, 3}
    with pytest.raises(InvalidReplicationFactor):
        bench.create("other", replication_factor=3)


def test_a_new_controller_prefers_registered_brokers_for_replicas() -> None:
    bench = three_brokers().start()
    for broker in (2, 3):
        bench.broker(broker, incarnation=bench.lives["broker", broker])
    bench.create(partitions=1, replication_factor=2)
    assert set(bench.state().replicas) == {2, 3}
    bench.create("wide", partitions=1, replication_factor=3)
    assert set(bench.state(TopicPartition("wide", 0)).replicas) == {1, 2, 3}, "the third may only be late"


def test_a_new_partition_does_not_wait_for_a_broker_lost_before_it_began() -> None:
    bench = three_brokers().start()
    for broker in (2, 3):
        bench.broker(broker, incarnation=bench.lives["broker", broker])
    bench.wait(GRACE_MS - 1_000)
    bench.create(assignment=[[1, 2]])
    bench.replica(2)
    assert bench.summary() == (-1, 0, (1, 2)), "broker 1 may still register and start its replica"
    bench.wait(1_000)
    assert bench.summary() == (2, 1, (2,))


def test_a_new_partition_does_not_wait_for_a_replica_that_fails_to_start(bench: Bench) -> None:
    bench.create(assignment=[[1, 2, 3]])
    bench.replica(2)
    assert bench.summary() == (-1, 0, (1, 2, 3))
    bench.lose(("broker", 1))
    assert bench.summary() == (2, 1, (2, 3))
    bench.broker(1)
    bench.replica(1)
    assert bench.summary() == (2, 1, (2, 3)), "it follows, and the leader takes it into the ISR again"


def test_validation_alone_creates_nothing(bench: Bench) -> None:
    assert bench.create(validate_only=True) == [""]
    assert bench.image.topics == {}
    with pytest.raises(InvalidConfig):
        bench.create(validate_only=True, config={"nonsense": 1})


def test_the_record_goes_to_all_brokers_before_the_answer(bench: Bench) -> None:
    bench.create()
    names = [type(effect).__name__ for effect in bench.effects]
    assert names == ["PublishMetadata", "Reply"]
    assert set(bench.published()[0].sessions) == set(bench.sessions.values())


# ---------------------------------------------------------------- deletion


def test_a_deleted_topic_does_not_exist_and_its_replicas_are_stopped() -> None:
    bench = running_topic()
    sessions = {bench.sessions[T0, broker] for broker in (1, 2, 3)}
    assert delete(bench) == []
    assert bench.image.topics == {}
    assert {found.session for found in bench.effects if isinstance(found, StopReplica)} == sessions


def test_a_stopped_replica_may_break_off_and_nothing_happens() -> None:
    bench = running_topic()
    delete(bench)
    before = len(bench.log)
    for broker in (1, 2, 3):
        assert bench.lose_replica(broker) == []
    assert len(bench.log) == before


def test_a_topic_created_again_is_another_one() -> None:
    bench = running_topic()
    first = bench.topic_id()
    delete(bench)
    bench.create(assignment=[[1, 2, 3]])
    assert bench.topic_id() != first
    assert bench.summary() == (-1, 0, (1, 2, 3))


def test_an_unknown_topic_cannot_be_deleted_and_the_nearest_one_is_named() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="flights"):
        delete(running_topic(), "flihgts")


def test_the_clusters_own_topics_cannot_be_deleted(bench: Bench) -> None:
    bench.ensure()
    with pytest.raises(InvalidRequest):
        delete(bench, "__consumer_offsets")


# ---------------------------------------------------------------- configuration


def test_settings_are_set_changed_and_taken_back(bench: Bench) -> None:
    bench.create(config={"retention.ms": 5, "segment.bytes": "4096"})
    alter(bench, set={"retention.ms": "7"}, delete=["segment.bytes"])
    assert bench.image.topics["flights"].config == {"retention.ms": "7"}


def test_an_illegal_setting_changes_nothing() -> None:
    bench = running_topic()
    before = bench.image.topics["flights"].config
    for change in (
        {"set": {"retention.ms": "soon"}},
        {"set": {"min.insync.replicas": 4}},
        {"delete": ["retention.sm"]},
        {"set": {"retention.ms": 1}, "delete": ["retention.ms"]},
    ):
        with pytest.raises(InvalidConfig):
            alter(bench, **change)
    assert bench.image.topics["flights"].config == before
    with pytest.raises(UnknownTopicOrPartition):
        alter(bench, topic="nowhere")


def test_every_setting_is_described_with_the_value_that_counts(bench: Bench) -> None:
    bench.create(config={"retention.ms": 5})
    rows = described(bench, "flights")
    found = {row[0]: row[1:4] for row in rows}
    assert found.keys() == TOPIC_KEYS.keys()
    assert found["retention.ms"] == ["5", "topic", "604800000"]
    assert found["replica.sleep.after.ms"] == [
        AWAKE["replica.sleep.after.ms"],
        "cluster",
        CLUSTER_KEYS["replica.sleep.after.ms"].default,
    ]
    assert found["min.insync.replicas"] == ["2", "default", "2"]
    alter(bench, delete=["retention.ms"], set={"min.insync.replicas": 1})
    found = {row[0]: row[1:4] for row in described(bench, "flights")}
    assert found["retention.ms"] == ["604800000", "default", "604800000"]
    assert found["min.insync.replicas"] == ["1", "topic", "2"]
    rows = described(bench, None)
    assert {row[0] for row in rows} == CLUSTER_KEYS.keys()
    assert {row[0]: row[1] for row in rows if row[2] == "start"} == DEFAULTS
    with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
        described(bench, "flight")


def test_settings_that_stay_the_same_write_nothing() -> None:
    bench = running_topic(config={"retention.ms": 5})
    before = len(bench.log)
    alter(bench, set={"retention.ms": 5})
    assert len(bench.log) == before


def test_allowing_unclean_elections_elects_at_once() -> None:
    bench = running_topic()
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.replica(1, log_lost=True)
    alter(bench, set={"unclean.leader.election.enable": True})
    assert bench.summary() == (2, 2, (2,))
    assert not bench.image.lost_logs
