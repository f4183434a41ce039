"""What the metadata records add up to: the cluster as the controller has decided it to be.

The controller keeps one and decides on it; every broker keeps a copy and answers clients from it. ``apply`` is the only
thing that changes an image, for live decisions and for recovery alike, so equal records give equal images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from raylog.core.controller.records import (
    BrokerOffline,
    BrokerRegistered,
    ClusterConfigured,
    ClusterCreated,
    ControllerStarted,
    CoordinatorPlaced,
    MetadataRecord,
    PartitionChanged,
    ProducerIdsAllocated,
    ReplicaLogLost,
    ReplicaPlaced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    TopicsDeletedBefore,
    VotersEntered,
)
from raylog.core.ids import NO_LEADER, BrokerId, ControllerEpoch, Incarnation, ProducerId, TopicPartition
from raylog.core.invariants import require
from raylog.core.replication.state import PartitionState, ReplicaPlace

NO_CONTROLLER: Final = ControllerEpoch(0)
FIRST_PRODUCER: Final = ProducerId(0)


DELETED_TOPICS_MAX = 10_000
"""Deleted topics that are remembered; a broker that was away for longer than so many deletions keeps their folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One broker: its last registration, and whether it runs now."""

    broker: BrokerId
    incarnation: Incarnation
    node_id: str
    host: str
    port: int
    directory_id: str
    online: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """One coordinator: kind "group" or "transaction", index of its partition, number of its life, and its endpoint."""

    kind: str
    index: int
    epoch: int
    producer_id: ProducerId
    host: str
    port: int
    """0 = it does not run."""


@dataclass(slots=True)
class TopicImage:
    """One topic: identity, own configuration (explicit settings only), and the state of each partition by number."""

    topic_id: str
    name: str
    config: Mapping[str, str]
    partitions: list[PartitionState]

    @property
    def internal(self) -> bool:
        """Tell whether the topic is Raylog's own."""
        return self.name.startswith("__")


@dataclass(slots=True)
class MetadataImage:
    """The whole cluster at one version. Compare two with ``==``; change one only with :meth:`apply`."""

    version: int = 0
    """Number of records applied since the cluster was created."""
    cluster_id: str = ""
    """Empty = no cluster has been created yet."""
    config: Mapping[str, str] = field(default_factory=dict)
    controller_epoch: ControllerEpoch = NO_CONTROLLER
    brokers: dict[BrokerId, BrokerImage] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    coordinators: dict[tuple[str, int], Coordinator] = field(default_factory=dict)
    deleted_topics: dict[str, None] = field(default_factory=dict)
    """Ids of the topics that were deleted last, oldest first; their folders may be removed wherever they are found."""
    next_producer_id: ProducerId = FIRST_PRODUCER
    log_ids: dict[tuple[TopicPartition, BrokerId], str] = field(default_factory=dict)
    """The log that each replica last registered with, where it has an identity."""
    lost_logs: dict[tuple[TopicPartition, BrokerId], str] = field(default_factory=dict)
    """ISR members that came back without their log, and which it was; see :class:`~.records.ReplicaLogLost`."""
    voters: Mapping[str, str] = field(default_factory=dict)
    """Identity of the metadata log's copy on each voter, by broker id; empty = none has been entered."""

    # ------------------------------------------------------------ lookups

    def topic(self, name: str, topic_id: str | None = None) -> TopicImage | None:
        """Return the topic of that name, or None when there is none or it is another one than ``topic_id`` says."""
        found = self.topics.get(name)
        return None if found is None or (topic_id is not None and found.topic_id != topic_id) else found

    def partition(self, partition: TopicPartition, topic_id: str | None = None) -> PartitionState | None:
        """Return a partition's state; None when its topic is unknown, is another one, or has fewer partitions."""
        topic = self.topic(partition.topic, topic_id)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def partitions(self) -> Iterator[PartitionState]:
        """Go through all partitions, by topic name and number."""
        for name in sorted(self.topics):
            yield from self.topics[name].partitions

    def online_brokers(self) -> list[BrokerImage]:
        """Return the brokers that run, by id."""
        return [broker for _, broker in sorted(self.brokers.items()) if broker.online]

    # ------------------------------------------------------------ records in

    def apply(self, record: MetadataRecord) -> None:
        """Take one record in. A record that does not fit raises ``InvariantBroken``: the log is not one of Raylog's."""
        handler = _APPLY.get(type(record))
        require(handler is not None, f"the image knows what to do with {type(record).__name__}")
        if handler is not None:
            handler(self, record)
        self.version += 1

    @classmethod
    def restore(cls, version: int, records: Iterable[MetadataRecord]) -> MetadataImage:
        """Return the image that :meth:`to_records` described at that version."""
        image = cls()
        for record in records:
            image.apply(record)
        image.version = version
        return image

    def copy(self) -> MetadataImage:
        """Return an image that is equal now and independent from then on."""
        return MetadataImage.restore(self.version, self.to_records())

    # ------------------------------------------------------------ records out

    def to_records(self) -> list[MetadataRecord]:
        """Return records that rebuild this image with :meth:`restore`: a snapshot, in an order fixed by its content."""
        records: list[MetadataRecord] = []
        if self.cluster_id:
            records.append(ClusterCreated(cluster_id=self.cluster_id, config=self.config))
        if self.controller_epoch:
            records.append(ControllerStarted(controller_epoch=self.controller_epoch))
        if self.voters:
            records.append(VotersEntered(voters=self.voters))
        if self.deleted_topics:
            records.append(TopicsDeletedBefore(topic_ids=tuple(self.deleted_topics)))
        for _, broker in sorted(self.brokers.items()):
            records.append(
                BrokerRegistered(
                    broker=broker.broker,
                    incarnation=broker.incarnation,
                    node_id=broker.node_id,
                    host=broker.host,
                    port=broker.port,
                    directory_id=broker.directory_id,
                )
            )
            if not broker.online:
                records.append(BrokerOffline(broker=broker.broker))
        for name in sorted(self.topics):
            records.extend(self._topic_records(self.topics[name]))
        if self.next_producer_id:
            records.append(ProducerIdsAllocated(next_id=self.next_producer_id))
        for key in sorted(self.coordinators):
            found = self.coordinators[key]
            records.append(
                CoordinatorPlaced(
                    kind=found.kind,
                    index=found.index,
                    epoch=found.epoch,
                    producer_id=found.producer_id,
                    host=found.host,
                    port=found.port,
                )
            )
        return records

    def _topic_records(self, topic: TopicImage) -> Iterator[MetadataRecord]:
        replicas = tuple(state.replicas for state in topic.partitions)
        yield TopicCreated(topic_id=topic.topic_id, topic=topic.name, config=topic.config, partitions=replicas)
        for state in topic.partitions:
            if state.partition_epoch:
                yield partition_changed(state)
            for place in state.places:
                key = state.partition, place.broker
                if place != ReplicaPlace(broker=place.broker):
                    yield replica_placed(state.partition, place, self.log_ids.get(key, ""))
                if key in self.lost_logs:
                    yield ReplicaLogLost(
                        topic=topic.name,
                        partition=state.partition.partition,
                        broker=place.broker,
                        log_id=self.lost_logs[key],
                    )

    # ------------------------------------------------------------ self-check

    def validate(self) -> None:
        """Check every cross-reference; costly, for tests and the simulator."""
        for name, topic in self.topics.items():
            require(name == topic.name, f"topic {topic.name} is filed under its name")
            for number, state in enumerate(topic.partitions):
                require(state.partition == TopicPartition(name, number), f"{state.partition} is filed under its number")
                require(state.topic_id == topic.topic_id, f"{state.partition} carries its topic's id")
                self._validate_partition(state)
        for partition, broker in sorted(self.lost_logs):
            found = self.partition(partition)
            require(
                found is not None and broker in found.isr, f"the lost log of {partition} on {broker} is an ISR member's"
            )
        incarnations = [place.incarnation for state in self.partitions() for place in state.places]
        incarnations += [broker.incarnation for broker in self.brokers.values()]
        granted = [incarnation for incarnation in incarnations if incarnation >= 0]
        require(len(granted) == len(set(granted)), "no incarnation was granted twice")
        require(all(incarnation <= self.version for incarnation in granted), "incarnations come from versions")

    def _validate_partition(self, state: PartitionState) -> None:
        name, isr, replicas = str(state.partition), state.isr, state.replicas
        require(bool(replicas) and len(set(replicas)) == len(replicas), f"{name} has replicas on different brokers")
        require(bool(isr) and len(set(isr)) == len(isr), f"the ISR of {name} is not empty")
        require(set(isr) <= set(replicas), f"the ISR of {name} is part of its replicas")
        require(set(state.elr) <= set(replicas), f"the eligible leader replicas of {name} are part of its replicas")
        require(not set(state.elr) & set(isr), f"the eligible leader replicas of {name} are outside its ISR")
        moving = {*state.adding, *state.removing}
        require(moving <= set(replicas), f"the replicas of {name} that come and go are part of its replicas")
        require(not set(state.adding) & set(state.removing), f"no replica of {name} both comes and goes")
        require(tuple(place.broker for place in state.places) == replicas, f"{name} has one place for each replica")
        if state.leader != NO_LEADER:
            place = state.place(state.leader)
            require(state.leader in isr, f"the leader of {name} is in its ISR")
            require(place is not None and place.port != 0, f"the leader of {name} runs")
            require(state.leader_epoch > 0, f"the leader of {name} was elected")
            require((state.partition, state.leader) not in self.lost_logs, f"the leader of {name} has its log")


def partition_changed(state: PartitionState) -> PartitionChanged:
    """Return the record that says what ``state`` says, places aside."""
    return PartitionChanged(
        topic=state.partition.topic,
        partition=state.partition.partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        replicas=state.replicas,
        partition_epoch=state.partition_epoch,
        elr=state.elr,
        unclean_leader_epoch=state.unclean_leader_epoch,
        adding=state.adding,
        removing=state.removing,
    )


def replica_placed(partition: TopicPartition, place: ReplicaPlace, log_id: str = "") -> ReplicaPlaced:
    """Return the record that puts a replica into that place, on that log."""
    return ReplicaPlaced(
        topic=partition.topic,
        partition=partition.partition,
        broker=place.broker,
        incarnation=place.incarnation,
        host=place.host,
        port=place.port,
        log_id=log_id,
    )


# ---------------------------------------------------------------- one function for each record


def _cluster_created(image: MetadataImage, record: ClusterCreated) -> None:
    require(not image.cluster_id, "a cluster is created once")
    image.cluster_id = record.cluster_id
    image.config = dict(record.config)


def _cluster_configured(image: MetadataImage, record: ClusterConfigured) -> None:
    image.config = dict(record.config)


def _controller_started(image: MetadataImage, record: ControllerStarted) -> None:
    require(record.controller_epoch > image.controller_epoch, "the controller epoch rises")
    image.controller_epoch = record.controller_epoch


def _broker_registered(image: MetadataImage, record: BrokerRegistered) -> None:
    image.brokers[record.broker] = BrokerImage(
        broker=record.broker,
        incarnation=record.incarnation,
        node_id=record.node_id,
        host=record.host,
        port=record.port,
        directory_id=record.directory_id,
    )


def _broker_offline(image: MetadataImage, record: BrokerOffline) -> None:
    require(record.broker in image.brokers, f"broker {record.broker} has registered")
    image.brokers[record.broker] = replace(image.brokers[record.broker], online=False)


def _topic_created(image: MetadataImage, record: TopicCreated) -> None:
    require(record.topic not in image.topics, f"topic {record.topic} is new")
    image.topics[record.topic] = TopicImage(
        topic_id=record.topic_id,
        name=record.topic,
        config=dict(record.config),
        partitions=[
            PartitionState(
                topic_id=record.topic_id,
                partition=TopicPartition(record.topic, number),
                replicas=replicas,
                isr=replicas,
                places=tuple(ReplicaPlace(broker=broker) for broker in replicas),
            )
            for number, replicas in enumerate(record.partitions)
        ],
    )


def _topic_configured(image: MetadataImage, record: TopicConfigured) -> None:
    require(image.topic(record.topic, record.topic_id) is not None, f"topic {record.topic} exists")
    image.topics[record.topic].config = dict(record.config)


def _topic_deleted(image: MetadataImage, record: TopicDeleted) -> None:
    require(image.topic(record.topic, record.topic_id) is not None, f"topic {record.topic} exists")
    del image.topics[record.topic]
    image.deleted_topics[record.topic_id] = None
    while len(image.deleted_topics) > DELETED_TOPICS_MAX:
        del image.deleted_topics[next(iter(image.deleted_topics))]
    image.log_ids = {key: log_id for key, log_id in image.log_ids.items() if key[0].topic != record.topic}
    image.lost_logs = {key: log_id for key, log_id in image.lost_logs.items() if key[0].topic != record.topic}


def _topics_deleted_before(image: MetadataImage, record: TopicsDeletedBefore) -> None:
    image.deleted_topics = dict.fromkeys(record.topic_ids)


def _partition_changed(image: MetadataImage, record: PartitionChanged) -> None:
    state = _existing(image, record.topic, record.partition)
    require(record.partition_epoch > state.partition_epoch, f"the partition epoch of {state.partition} rises")
    require(record.leader_epoch >= state.leader_epoch, f"the leader epoch of {state.partition} never falls")
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
    )
    if image.lost_logs:
        image.lost_logs = {
            (partition, broker): log_id
            for (partition, broker), log_id in image.lost_logs.items()
            if partition != state.partition or (broker in record.isr and broker != record.leader)
        }


def _replica_placed(image: MetadataImage, record: ReplicaPlaced) -> None:
    state = _existing(image, record.topic, record.partition)
    require(record.broker in state.replicas, f"broker {record.broker} holds a replica of {state.partition}")
    place = ReplicaPlace(broker=record.broker, incarnation=record.incarnation, host=record.host, port=record.port)
    places = tuple(place if held.broker == record.broker else held for held in state.places)
    image.topics[record.topic].partitions[record.partition] = replace(state, places=places)
    if record.log_id:
        image.log_ids[state.partition, record.broker] = record.log_id


def _replica_log_lost(image: MetadataImage, record: ReplicaLogLost) -> None:
    state = _existing(image, record.topic, record.partition)
    require(record.broker in state.isr, f"broker {record.broker} is in the ISR of {state.partition}")
    image.lost_logs[state.partition, record.broker] = record.log_id


def _producer_ids_allocated(image: MetadataImage, record: ProducerIdsAllocated) -> None:
    require(record.next_id > image.next_producer_id, "producer ids are handed out once")
    image.next_producer_id = record.next_id


def _coordinator_placed(image: MetadataImage, record: CoordinatorPlaced) -> None:
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


def _voters_entered(image: MetadataImage, record: VotersEntered) -> None:
    image.voters = dict(record.voters)


def _existing(image: MetadataImage, topic: str, partition: int) -> PartitionState:
    state = image.partition(TopicPartition(topic, partition))
    if state is None:
        require(False, f"partition {topic}-{partition} exists")
        raise AssertionError  # not reached: require has raised
    return state


_APPLY: Mapping[type[MetadataRecord], Callable[..., None]] = {
    ClusterCreated: _cluster_created,
    ClusterConfigured: _cluster_configured,
    ControllerStarted: _controller_started,
    BrokerRegistered: _broker_registered,
    BrokerOffline: _broker_offline,
    TopicCreated: _topic_created,
    TopicConfigured: _topic_configured,
    TopicDeleted: _topic_deleted,
    TopicsDeletedBefore: _topics_deleted_before,
    PartitionChanged: _partition_changed,
    ReplicaPlaced: _replica_placed,
    ReplicaLogLost: _replica_log_lost,
    ProducerIdsAllocated: _producer_ids_allocated,
    CoordinatorPlaced: _coordinator_placed,
    VotersEntered: _voters_entered,
}
