"""How each metadata record changes the image. Called by ``MetadataImage.apply`` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from raylog.base.features import LevelRange
from raylog.base.ids import BrokerId, TopicPartition
from raylog.base.invariants import require
from raylog.core.configuration.altering import ClusterValues
from raylog.core.metadata.entries import BrokerImage, Coordinator, ImageTables, TopicImage
from raylog.core.metadata.records import (
    BrokerOffline,
    BrokerRegistered,
    BrokerResumed,
    BrokerStopped,
    ClusterAltered,
    ClusterCreated,
    ControllerStarted,
    CoordinatorPlaced,
    FeatureLevelRaised,
    MetadataRecord,
    PartitionAsleep,
    PartitionChanged,
    PartitionsAdded,
    PartitionsBornAsleep,
    ProducerIdsAllocated,
    ReplicaLogLost,
    ReplicaPlaced,
    ReplicaRemovedBefore,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    TopicsDeletedBefore,
    VotersEntered,
)
from raylog.core.partition import NEVER_WRITTEN, PartitionState, ReplicaPlace, SleepPoint

DELETED_TOPICS_MAX = 10_000
"""Deleted topics that are remembered; a broker that missed more deletions keeps the folders of the earlier ones."""


def _cluster_created(image: ImageTables, record: ClusterCreated) -> None:
    require(not image.cluster_id, "a cluster is created once")
    image.cluster_id = record.cluster_id
    image.configure(ClusterValues(dict(record.config), dict(record.config), {}))


def _cluster_altered(image: ImageTables, record: ClusterAltered) -> None:
    image.configure(ClusterValues(dict(record.config), dict(record.given), dict(record.altered), record.start))


def _controller_started(image: ImageTables, record: ControllerStarted) -> None:
    require(record.controller_epoch > image.controller_epoch, "the controller epoch rises")
    image.controller_epoch = record.controller_epoch


def _broker_registered(image: ImageTables, record: BrokerRegistered) -> None:
    held = image.brokers.get(record.broker)
    image.brokers[record.broker] = BrokerImage(
        broker=record.broker,
        incarnation=record.incarnation,
        node_id=record.node_id,
        host=record.host,
        port=record.port,
        directory_id=record.directory_id,
        levels=LevelRange(record.lowest_level, record.highest_level),
        capacity=record.capacity,
        stopped=held is not None and held.stopped,
    )


def _feature_level_raised(image: ImageTables, record: FeatureLevelRaised) -> None:
    require(record.level > image.feature_level, "the feature level rises")
    image.feature_level = record.level


def _broker_offline(image: ImageTables, record: BrokerOffline) -> None:
    require(record.broker in image.brokers, f"broker {record.broker} has registered")
    image.brokers[record.broker] = replace(image.brokers[record.broker], online=False)


def _broker_stopped(image: ImageTables, record: BrokerStopped) -> None:
    require(record.broker in image.brokers, f"broker {record.broker} has registered")
    image.brokers[record.broker] = replace(image.brokers[record.broker], stopped=True)


def _broker_resumed(image: ImageTables, record: BrokerResumed) -> None:
    require(record.broker in image.brokers, f"broker {record.broker} has registered")
    image.brokers[record.broker] = replace(image.brokers[record.broker], stopped=False)


def _topic_created(image: ImageTables, record: TopicCreated) -> None:
    require(record.topic not in image.topics, f"topic {record.topic} is new")
    image.topics[record.topic] = TopicImage(
        topic_id=record.topic_id,
        name=record.topic,
        config=dict(record.config),
        partitions=[],
    )
    image.topic_names[record.topic_id] = record.topic
    _add_partitions(image, image.topics[record.topic], record.partitions)


def _partitions_added(image: ImageTables, record: PartitionsAdded) -> None:
    require(image.topic(record.topic, record.topic_id) is not None, f"topic {record.topic} exists")
    _add_partitions(image, image.topics[record.topic], record.partitions)


def _add_partitions(image: ImageTables, topic: TopicImage, partitions: tuple[tuple[BrokerId, ...], ...]) -> None:
    for replicas in partitions:
        image.awake.update(replicas)
    topic.partitions.extend(
        PartitionState(
            topic_id=topic.topic_id,
            partition=TopicPartition(topic.name, number),
            replicas=replicas,
            isr=replicas,
            places=tuple(ReplicaPlace(broker=broker) for broker in replicas),
        )
        for number, replicas in enumerate(partitions, start=len(topic.partitions))
    )


def _topic_configured(image: ImageTables, record: TopicConfigured) -> None:
    require(image.topic(record.topic, record.topic_id) is not None, f"topic {record.topic} exists")
    image.topics[record.topic].config = dict(record.config)


def _topic_deleted(image: ImageTables, record: TopicDeleted) -> None:
    require(image.topic(record.topic, record.topic_id) is not None, f"topic {record.topic} exists")
    for state in image.topics[record.topic].partitions:
        if state.asleep is None:
            image.awake.subtract(state.replicas)
    del image.topics[record.topic]
    del image.topic_names[record.topic_id]
    image.deleted_topics[record.topic_id] = None
    while len(image.deleted_topics) > DELETED_TOPICS_MAX:
        del image.deleted_topics[next(iter(image.deleted_topics))]
    image.log_ids = {key: log_id for key, log_id in image.log_ids.items() if key[0].topic != record.topic}
    image.lost_logs = {key: log_id for key, log_id in image.lost_logs.items() if key[0].topic != record.topic}
    image.removed_replicas = {
        key: epoch for key, epoch in image.removed_replicas.items() if key[0].topic != record.topic
    }


def _topics_deleted_before(image: ImageTables, record: TopicsDeletedBefore) -> None:
    image.deleted_topics = dict.fromkeys(record.topic_ids)


def _partition_changed(image: ImageTables, record: PartitionChanged) -> None:
    state = _existing(image, record.topic, record.partition)
    require(record.partition_epoch > state.partition_epoch, f"the partition epoch of {state.partition} rises")
    require(record.leader_epoch >= state.leader_epoch, f"the leader epoch of {state.partition} never falls")
    if state.asleep is None:
        image.awake.subtract(state.replicas)
    image.awake.update(record.replicas)
    places = tuple(state.place(broker) or ReplicaPlace(broker=broker) for broker in record.replicas)
    image.topics[record.topic].partitions[record.partition] = replace(
        state,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        isr=record.isr,
        replicas=record.replicas,
        partition_epoch=record.partition_epoch,
        places=places,
        elr=record.elr,
        unclean_leader_epoch=record.unclean_leader_epoch,
        adding=record.adding,
        removing=record.removing,
        asleep=None,
    )
    for broker in state.replicas:
        if broker not in record.replicas:
            image.removed_replicas[state.partition, broker] = state.leader_epoch
            image.log_ids.pop((state.partition, broker), None)
    for broker in record.replicas:
        if broker not in state.replicas:
            image.removed_replicas.pop((state.partition, broker), None)
    if image.lost_logs:
        image.lost_logs = {
            (partition, broker): log_id
            for (partition, broker), log_id in image.lost_logs.items()
            if partition != state.partition or (broker in record.isr and broker != record.leader)
        }


def _partition_asleep(image: ImageTables, record: PartitionAsleep) -> None:
    _partition_changed(image, record)
    partitions = image.topics[record.topic].partitions
    state = partitions[record.partition]
    image.awake.subtract(state.replicas)
    places = tuple(ReplicaPlace(broker=place.broker, incarnation=place.incarnation) for place in state.places)
    partitions[record.partition] = replace(state, places=places, asleep=SleepPoint.from_row(record.asleep))


def _partitions_born_asleep(image: ImageTables, record: PartitionsBornAsleep) -> None:
    require(record.topic in image.topics, f"topic {record.topic} exists")
    partitions = image.topics[record.topic].partitions
    require(0 <= record.first <= record.end <= len(partitions), f"{record.topic} has the partitions that are born")
    for number in range(record.first, record.end):
        state = partitions[number]
        require(not state.partition_epoch, f"{state.partition} is new")
        partitions[number] = replace(state, leader=state.replicas[0], asleep=NEVER_WRITTEN)
        image.awake.subtract(state.replicas)


def _replica_placed(image: ImageTables, record: ReplicaPlaced) -> None:
    state = _existing(image, record.topic, record.partition)
    require(record.broker in state.replicas, f"broker {record.broker} holds a replica of {state.partition}")
    place = ReplicaPlace(broker=record.broker, incarnation=record.incarnation, host=record.host, port=record.port)
    places = tuple(place if held.broker == record.broker else held for held in state.places)
    image.topics[record.topic].partitions[record.partition] = replace(state, places=places)
    if record.log_id:
        image.log_ids[state.partition, record.broker] = record.log_id


def _replica_removed_before(image: ImageTables, record: ReplicaRemovedBefore) -> None:
    state = _existing(image, record.topic, record.partition)
    require(record.broker not in state.replicas, f"broker {record.broker} holds no replica of {state.partition}")
    image.removed_replicas[state.partition, record.broker] = record.leader_epoch


def _replica_log_lost(image: ImageTables, record: ReplicaLogLost) -> None:
    state = _existing(image, record.topic, record.partition)
    require(record.broker in state.isr, f"broker {record.broker} is in the ISR of {state.partition}")
    image.lost_logs[state.partition, record.broker] = record.log_id


def _producer_ids_allocated(image: ImageTables, record: ProducerIdsAllocated) -> None:
    require(record.next_id > image.next_producer_id, "producer ids are handed out once")
    image.next_producer_id = record.next_id


def _coordinator_placed(image: ImageTables, record: CoordinatorPlaced) -> None:
    key = (record.kind, record.index)
    held = image.coordinators.get(key)
    require(
        held is None or record.epoch >= held.epoch, f"the epoch of {record.kind} coordinator {record.index} never falls"
    )
    image.coordinators[key] = Coordinator(
        kind=record.kind,
        index=record.index,
        epoch=record.epoch,
        producer_id=record.producer_id,
        host=record.host,
        port=record.port,
    )


def _voters_entered(image: ImageTables, record: VotersEntered) -> None:
    image.voters = dict(record.voters)


def _existing(image: ImageTables, topic: str, partition: int) -> PartitionState:
    state = image.partition(TopicPartition(topic, partition))
    if state is None:
        require(False, f"partition {topic}-{partition} exists")
        raise AssertionError  # not reached: require has raised
    return state


APPLY: Final[Mapping[type[MetadataRecord], Callable[..., None]]] = {
    ClusterCreated: _cluster_created,
    ClusterAltered: _cluster_altered,
    ControllerStarted: _controller_started,
    BrokerRegistered: _broker_registered,
    BrokerOffline: _broker_offline,
    FeatureLevelRaised: _feature_level_raised,
    BrokerStopped: _broker_stopped,
    BrokerResumed: _broker_resumed,
    TopicCreated: _topic_created,
    PartitionsAdded: _partitions_added,
    TopicConfigured: _topic_configured,
    TopicDeleted: _topic_deleted,
    TopicsDeletedBefore: _topics_deleted_before,
    PartitionChanged: _partition_changed,
    PartitionAsleep: _partition_asleep,
    PartitionsBornAsleep: _partitions_born_asleep,
    ReplicaPlaced: _replica_placed,
    ReplicaRemovedBefore: _replica_removed_before,
    ReplicaLogLost: _replica_log_lost,
    ProducerIdsAllocated: _producer_ids_allocated,
    CoordinatorPlaced: _coordinator_placed,
    VotersEntered: _voters_entered,
}
"""The function for each record type."""
