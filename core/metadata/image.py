"""The metadata image: the cluster's state as the sum of the metadata records.

The controller keeps one and decides on it; every broker keeps a copy and answers clients from it. ``apply`` is the only
mutator of an image, for live decisions and for recovery alike, so equal records give equal images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raylog.base.features import FIRST_LEVEL
from raylog.base.ids import NO_LEADER, TopicPartition
from raylog.base.invariants import require
from raylog.core.configuration.altering import ClusterValues
from raylog.core.metadata.applying import APPLY
from raylog.core.metadata.entries import BrokerImage, Coordinator, ImageTables, TopicImage
from raylog.core.metadata.records import (
    BrokerOffline,
    BrokerRegistered,
    BrokerStopped,
    ClusterAltered,
    ClusterCreated,
    ControllerStarted,
    CoordinatorPlaced,
    FeatureLevelRaised,
    MetadataRecord,
    PartitionAsleep,
    PartitionChanged,
    PartitionsBornAsleep,
    ProducerIdsAllocated,
    ReplicaLogLost,
    ReplicaPlaced,
    ReplicaRemovedBefore,
    TopicCreated,
    TopicsDeletedBefore,
    VotersEntered,
)
from raylog.core.partition import PartitionState, ReplicaPlace


@dataclass(slots=True)
class MetadataImage(ImageTables):
    """The whole cluster at one version. Compare two with ``==``; change one only with :meth:`apply`."""

    # ------------------------------------------------------------ records in

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record. A record that does not fit raises ``InvariantBroken``: Raylog did not write this log."""
        handler = APPLY.get(type(record))
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
        if self.feature_level > FIRST_LEVEL:
            records.append(FeatureLevelRaised(level=self.feature_level))
        if self.values != ClusterValues(self.config, self.config, {}):
            records.append(cluster_altered(self.values))
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
                    lowest_level=broker.levels.lowest,
                    highest_level=broker.levels.highest,
                    capacity=broker.capacity,
                )
            )
            if not broker.online:
                records.append(BrokerOffline(broker=broker.broker))
            if broker.stopped:
                records.append(BrokerStopped(broker=broker.broker))
        for name in sorted(self.topics):
            records.extend(self._topic_records(self.topics[name]))
        for (partition, holder), epoch in sorted(self.removed_replicas.items()):
            records.append(
                ReplicaRemovedBefore(
                    topic=partition.topic, partition=partition.partition, broker=holder, leader_epoch=epoch
                )
            )
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
        yield from _born_asleep(topic)
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
        for partition, broker in sorted(self.removed_replicas):
            found = self.partition(partition)
            require(
                found is not None and broker not in found.replicas, f"broker {broker} holds no replica of {partition}"
            )
        awake = Counter(broker for state in self.partitions() if state.asleep is None for broker in state.replicas)
        require(+self.awake == awake, f"{dict(self.awake)} replicas are counted awake, and {dict(awake)} are")
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
            is_asleep = state.asleep is not None
            require(place is not None and (place.port != 0) != is_asleep, f"the leader of {name} runs, or it sleeps")
            require(state.leader_epoch > 0 or is_asleep, f"the leader of {name} was elected")
            require((state.partition, state.leader) not in self.lost_logs, f"the leader of {name} has its log")
        if state.asleep is not None:
            require(state.leader != NO_LEADER, f"{name} sleeps with a leader")
            require(all(not place.port for place in state.places), f"{name} sleeps, and no replica of it runs")
            require(
                state.asleep.log_start_offset <= state.asleep.end_offset, f"the log of {name} begins before its end"
            )


def cluster_altered(values: ClusterValues) -> ClusterAltered:
    """Return the record that carries the cluster's settings."""
    return ClusterAltered(config=values.config, given=values.given, altered=values.altered, start=values.start)


def partition_changed(state: PartitionState) -> PartitionChanged:
    """Return the record that carries ``state`` without its places."""
    changed = PartitionChanged(
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
    if state.asleep is None:
        return changed
    fields = {name: getattr(changed, name) for name in changed.__struct_fields__}
    return PartitionAsleep(**fields, asleep=state.asleep.to_row())


def _born_asleep(topic: TopicImage) -> Iterator[PartitionsBornAsleep]:
    """Yield one record for each run of adjacent partitions that have not changed since they were created asleep."""
    first = None
    for number, state in enumerate((*topic.partitions, None)):
        is_unborn = state is not None and state.asleep is not None and not state.partition_epoch
        if is_unborn and first is None:
            first = number
        elif not is_unborn and first is not None:
            yield PartitionsBornAsleep(topic=topic.name, first=first, end=number)
            first = None


def replica_placed(partition: TopicPartition, place: ReplicaPlace, log_id: str = "") -> ReplicaPlaced:
    """Return the record that puts a replica into that place; ``log_id``: the identity of its log, if it has one."""
    return ReplicaPlaced(
        topic=partition.topic,
        partition=partition.partition,
        broker=place.broker,
        incarnation=place.incarnation,
        host=place.host,
        port=place.port,
        log_id=log_id,
    )


__all__ = [
    "BrokerImage",
    "Coordinator",
    "MetadataImage",
    "TopicImage",
    "cluster_altered",
    "partition_changed",
    "replica_placed",
]
