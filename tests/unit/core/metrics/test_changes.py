"""Elections, and ISRs that shrink and grow, counted from metadata records."""

from raylog.base.ids import BrokerId, LeaderEpoch, PartitionEpoch
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import PartitionChanged, TopicCreated, TopicDeleted
from raylog.core.metrics.changes import PartitionChanges
from tests.simulation.whole.holdings import sizes_below


def changed(leader: int, epoch: int, *isr: int, unclean: int = 0, partition: int = 0) -> PartitionChanged:
    return PartitionChanged(
        topic="t",
        partition=partition,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(map(BrokerId, isr)),
        replicas=tuple(map(BrokerId, (1, 2, 3))),
        partition_epoch=PartitionEpoch(epoch),
        unclean_leader_epoch=LeaderEpoch(unclean),
    )


def created() -> TopicCreated:
    return TopicCreated(topic_id="i", topic="t", config={}, partitions=((BrokerId(1), BrokerId(2), BrokerId(3)),))


def figures(changes: PartitionChanges) -> tuple[int, int, int, int]:
    return changes.elections, changes.unclean_elections, changes.isr_shrinks, changes.isr_expands


def test_elections_and_isr_changes_are_counted() -> None:
    changes = PartitionChanges()
    changes.note([created(), changed(1, 1, 1, 2, 3)])
    assert figures(changes) == (1, 0, 0, 0)
    changes.note([changed(1, 1, 1, 2)])  # a follower left
    assert figures(changes) == (1, 0, 1, 0)
    changes.note([changed(2, 2, 2)])  # the leader was lost
    assert figures(changes) == (2, 0, 2, 0)
    changes.note([changed(-1, 3, 2)])  # no leader: no election
    assert figures(changes) == (2, 0, 2, 0)
    changes.note([changed(3, 4, 3, unclean=4), changed(3, 4, 3, 1, unclean=4)])
    assert figures(changes) == (3, 1, 2, 1)


def test_a_broker_counts_the_isrs_of_the_partitions_that_it_leads() -> None:
    changes = PartitionChanges(broker=1)
    changes.note([changed(1, 1, 1, 2, 3), changed(1, 1, 1, 2), changed(2, 2, 2)])
    assert (changes.isr_shrinks, changes.isr_expands) == (1, 0)


def test_what_was_there_before_is_no_change() -> None:
    image = MetadataImage()
    for record in (created(), changed(1, 5, 1, 2)):
        image.apply(record)
    changes = PartitionChanges()
    changes.begin(image)
    changes.note([changed(1, 5, 1, 2)])
    assert figures(changes) == (0, 0, 0, 0)


def test_a_recreated_topic_begins_from_scratch() -> None:
    changes = PartitionChanges()
    deleted = TopicDeleted(topic_id="i", topic="t")
    changes.note([created(), changed(1, 9, 1, 2, 3), deleted, created(), changed(1, 1, 1)])
    assert figures(changes) == (2, 0, 0, 0)


def test_nothing_is_kept_of_topics_that_were_deleted() -> None:
    changes = PartitionChanges()
    for _ in range(3):
        changes.note([created(), changed(1, 1, 1, 2), changed(1, 1, 1, partition=1)])
        changes.note([TopicDeleted(topic_id="i", topic="t")])
    assert not sizes_below(("", changes))["PartitionChanges._known"]
