"""Which partitions records are about: their readers look at no others."""

import pytest

from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import (
    BrokerOffline,
    BrokerResumed,
    BrokerStopped,
    ClusterAltered,
    ControllerStarted,
    MetadataRecord,
    PartitionAsleep,
    PartitionChanged,
    PartitionsAdded,
    PartitionsBornAsleep,
    ReplicaPlaced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from raylog.core.metadata.touched import Touched
from raylog.core.partition import NEVER_WRITTEN

ONE = BrokerId(1)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
CHANGE = {
    "topic": "a",
    "partition": 1,
    "leader": ONE,
    "leader_epoch": LeaderEpoch(1),
    "isr": (ONE,),
    "replicas": (ONE,),
    "partition_epoch": PartitionEpoch(1),
}


def image() -> MetadataImage:
    """Topics ``a`` with two partitions and ``b`` with one."""
    found = MetadataImage()
    for topic, count in (("a", 2), ("b", 1)):
        found.apply(TopicCreated(topic_id=topic * 32, topic=topic, config={}, partitions=((ONE,),) * count))
    return found


def touched_by(*records: MetadataRecord) -> set[TopicPartition]:
    touched = Touched()
    touched.note(records)
    return touched.among(image())


@pytest.mark.parametrize(
    "record",
    [
        PartitionChanged(**CHANGE),  # type: ignore[arg-type]
        PartitionAsleep(**CHANGE, asleep=NEVER_WRITTEN.to_row()),  # type: ignore[arg-type]
        ReplicaPlaced(topic="a", partition=1, broker=ONE, incarnation=Incarnation(1), host="h", port=1),
    ],
)
def test_a_record_about_a_partition_touches_it_alone(record: MetadataRecord) -> None:
    assert touched_by(record) == {A1}


@pytest.mark.parametrize(
    "record",
    [
        TopicCreated(topic_id="a" * 32, topic="a", config={}, partitions=((ONE,),) * 2),
        TopicConfigured(topic_id="a" * 32, topic="a", config={}),
        PartitionsAdded(topic_id="a" * 32, topic="a", partitions=((ONE,),)),
        PartitionsBornAsleep(topic="a", first=1, end=2),
        TopicDeleted(topic_id="c" * 32, topic="a"),
    ],
)
def test_a_record_about_a_topic_touches_what_the_topic_has_now(record: MetadataRecord) -> None:
    assert touched_by(record) == {A0, A1}


@pytest.mark.parametrize(
    "record", [ClusterAltered(config={}, given={}, altered={}), BrokerStopped(broker=ONE), BrokerResumed(broker=ONE)]
)
def test_what_concerns_every_replica_touches_everything(record: MetadataRecord) -> None:
    assert touched_by(record) == {A0, A1, B0}


def test_a_lost_broker_and_a_new_controller_concern_no_partition() -> None:
    assert touched_by(BrokerOffline(broker=ONE), ControllerStarted(controller_epoch=1)) == set()  # type: ignore[arg-type]


def test_a_deleted_topic_is_known_by_name_and_has_no_partitions() -> None:
    touched = Touched()
    touched.note([TopicDeleted(topic_id="d" * 32, topic="gone")])
    assert touched.deleted == {"gone"}
    assert touched.among(image()) == set()


def test_a_partition_that_is_not_there_any_more_stays_touched() -> None:
    touched = Touched(partitions={TopicPartition("gone", 0)})
    assert touched.among(image()) == {TopicPartition("gone", 0)}


def test_what_several_updates_were_about_adds_up() -> None:
    first, second = Touched(partitions={A1}), Touched(topics={"b"}, deleted={"c"})
    first.add(second)
    assert first == Touched(partitions={A1}, topics={"b"}, deleted={"c"})
    assert first.among(image()) == {A1, B0}
    first.add(Touched(everything=True))
    first.add(Touched())
    assert first.everything
