"""The replicas that should run on a broker: those of its partitions that are awake."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.actor_specs import BrokerSpec, ReplicaSpec
from raylog.actors.broker.wanted import WantedReplicas, holds, name_of, replica_named
from raylog.actors.naming import broker_name, partition_of_replica, replica_name
from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.metadata.image import MetadataImage, partition_changed
from raylog.core.metadata.records import (
    ClusterAltered,
    MetadataRecord,
    PartitionsBornAsleep,
    ReplicaPlaced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from raylog.core.metadata.touched import Touched
from raylog.core.partition import NEVER_WRITTEN, PartitionState

ONE, TWO = BrokerId(1), BrokerId(2)
ID = "a" * 32
SPEC = BrokerSpec(broker=1, folder=Path("broker-1"), secret=b"s" * 16, cluster_id="c", node_id="n")


class Stage:
    """Broker 1, which has three partitions of the topic ``t``; broker 2 leads the last of them."""

    def __init__(self, *records: MetadataRecord) -> None:
        self.image = MetadataImage()
        self.wanted = WantedReplicas(SPEC, 1)
        partitions = ((ONE, TWO), (ONE, TWO), (TWO, ONE), (TWO,))
        self.image.apply(TopicCreated(topic_id=ID, topic="t", config={"retention.ms": "5"}, partitions=partitions))
        for record in records:
            self.image.apply(record)
        self.wanted.update(self.image, Touched(everything=True))

    def state(self, number: int) -> PartitionState:
        state = self.image.partition(TopicPartition("t", number))
        assert state is not None
        return state

    def spec(self, partition: int) -> ReplicaSpec:
        found = self.wanted.spec(self.name(partition))
        assert found is not None
        return found

    def name(self, number: int) -> str:
        return name_of(self.state(number), 1)

    def apply(self, *records: MetadataRecord) -> set[str]:
        """Apply records; returns the names to look at."""
        touched = Touched()
        for record in records:
            self.image.apply(record)
        touched.note(records)
        return self.wanted.update(self.image, touched)

    def put(self, number: int, **changes: Any) -> set[str]:
        state = self.state(number)
        changes = {"leader": ONE, "leader_epoch": LeaderEpoch(1), **changes}
        following = PartitionEpoch(state.partition_epoch + 1)
        return self.apply(partition_changed(replace(state, partition_epoch=following, **changes)))


def test_the_replicas_placed_here_are_wanted_leaders_first() -> None:
    stage = Stage()
    turns = {name: found.turn for name, found in stage.wanted.by_name.items()}
    assert turns == {stage.name(0): 0, stage.name(1): 0, stage.name(2): 1}


def test_what_sleeps_is_not_wanted() -> None:
    stage = Stage(PartitionsBornAsleep(topic="t", first=0, end=2))
    assert set(stage.wanted.by_name) == {stage.name(2)}


def test_a_partition_that_falls_asleep_and_wakes_is_looked_at_each_time() -> None:
    stage = Stage()
    name = stage.name(1)
    assert stage.put(1, asleep=NEVER_WRITTEN) == {name}
    assert name not in stage.wanted.by_name
    assert stage.put(1, asleep=None) == {name}
    assert name in stage.wanted.by_name


def test_a_place_is_looked_at_alone() -> None:
    stage = Stage()
    placed = ReplicaPlaced(topic="t", partition=0, broker=ONE, incarnation=Incarnation(8), host="h", port=9)
    assert stage.apply(placed) == {stage.name(0)}
    assert stage.wanted.by_name[stage.name(0)].place.port == 9


def test_records_about_other_brokers_or_topics_change_nothing() -> None:
    stage = Stage()
    assert stage.apply(TopicCreated(topic_id="b" * 32, topic="u", config={}, partitions=((TWO,),))) == set()
    assert stage.put(3, leader=TWO, isr=(TWO,)) == set()


def test_a_topic_s_configuration_is_for_all_its_replicas_that_run() -> None:
    stage = Stage(PartitionsBornAsleep(topic="t", first=0, end=1))
    names = stage.apply(TopicConfigured(topic_id=ID, topic="t", config={"retention.ms": "6"}))
    assert names == {stage.name(1), stage.name(2)}
    assert stage.spec(1).topic_config == {"retention.ms": "6"}


def test_the_cluster_s_configuration_is_for_every_replica() -> None:
    stage = Stage()
    assert stage.apply(ClusterAltered(config={}, given={}, altered={})) == {stage.name(0), stage.name(1), stage.name(2)}


def test_a_deleted_topic_is_wanted_no_more_and_its_successor_is() -> None:
    stage = Stage()
    before = {stage.name(number) for number in range(3)}
    created = TopicCreated(topic_id="b" * 32, topic="t", config={}, partitions=((ONE,),))
    names = stage.apply(TopicDeleted(topic_id=ID, topic="t"), created)
    assert names == {*before, stage.name(0)}
    assert set(stage.wanted.by_name) == {stage.name(0)}
    assert before.isdisjoint(stage.wanted.by_name)
    with pytest.raises(KeyError):
        stage.wanted.spec(next(iter(before)))


def test_those_that_are_added_share_the_pace_and_learn_when_it_changes() -> None:
    stage = Stage(ClusterAltered(config={"follower.replication.throttled.rate": "1000"}, given={}, altered={}))
    stage.put(3, leader=TWO, replicas=(TWO, ONE), adding=(ONE,), isr=(TWO,))
    first = stage.spec(3).catch_up_bytes_per_s
    assert first > 0
    names = stage.put(2, leader=TWO, adding=(ONE,), isr=(TWO,))
    assert names == {stage.name(2), stage.name(3)}
    assert stage.spec(3).catch_up_bytes_per_s == first // 2
    assert stage.spec(0).catch_up_bytes_per_s == 0


def test_a_broker_holds_what_is_placed_on_it_awake_or_asleep() -> None:
    stage = Stage(PartitionsBornAsleep(topic="t", first=0, end=1))
    assert holds(stage.image, "t", 0, ID, 1)
    assert holds(stage.image, "t", 1, ID, 1)
    assert not holds(stage.image, "t", 3, ID, 1)
    assert not holds(stage.image, "t", 0, "b" * 32, 1)


def test_a_move_that_waits_in_its_sleep_brings_no_replica() -> None:
    stage = Stage()
    paced = ClusterAltered(config={"follower.replication.throttled.rate": "1000"}, given={}, altered={})
    assert stage.apply(paced) == {
        stage.name(0),
        stage.name(1),
        stage.name(2),
    }
    moving = {"replicas": (TWO, ONE), "isr": (TWO,), "adding": (ONE,), "leader": TWO}
    stage.put(3, **moving, asleep=NEVER_WRITTEN)
    assert len(stage.wanted.by_name) == 3
    stage.put(2, **moving)
    assert stage.spec(2).catch_up_bytes_per_s == 1_000
    stage.put(3, **moving, asleep=None)
    assert (stage.spec(2).catch_up_bytes_per_s, stage.spec(3).catch_up_bytes_per_s) == (500, 500)


@pytest.mark.parametrize("topic", ["t", "t-1", "a.b_c-0-12", "__consumer_offsets"])
def test_the_name_of_a_replica_has_its_partition(topic: str) -> None:
    assert partition_of_replica(replica_name(topic, 7, 12, ID)) == TopicPartition(topic, 7)


@pytest.mark.parametrize("name", [broker_name(1), "replica:spare:broker-1:0a1b", "replica:t:broker-1:0a1b"])
def test_the_names_of_other_actors_have_none(name: str) -> None:
    assert partition_of_replica(name) is None
    assert replica_named(MetadataImage(), name, 1) is None


def test_a_replica_is_found_by_its_name_awake_or_asleep_where_it_is() -> None:
    stage = Stage(PartitionsBornAsleep(topic="t", first=0, end=1))
    image = stage.image
    assert [replica_named(image, stage.name(number), 1) for number in (0, 1)] == [stage.state(0), stage.state(1)]
    assert replica_named(image, stage.name(3), 1) is None, "it is on broker 2 alone"
    assert replica_named(image, name_of(stage.state(1), 2), 1) is None, "it is another broker's"
    assert replica_named(image, replica_name("t", 1, 1, "b" * 32), 1) is None, "it is another topic of this name"
    assert replica_named(image, replica_name("u", 1, 1, ID), 1) is None
