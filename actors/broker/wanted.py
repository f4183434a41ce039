"""The replicas that should run on one broker, by the metadata: those of its partitions that are awake.

Kept by the supervisor. Only partitions that metadata records have changed are looked at, so an idle partition costs
nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raylog.actors.actor_specs import BrokerSpec, ReplicaSpec
from raylog.actors.naming import partition_of_replica, replica_name
from raylog.actors.settings import catch_up_rate
from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.touched import Touched
from raylog.core.partition import PartitionState, ReplicaPlace


@dataclass(frozen=True, slots=True)
class Wanted:
    """A replica that should run."""

    place: ReplicaPlace
    turn: int
    """Its position among the partition's replicas, which decides the order of starts. Starting a process takes time,
    and a partition serves once its leader and enough followers run: so all brokers start their leaders first, then the
    first followers."""


class WantedReplicas:
    """The replicas of one broker that are wanted, by name."""

    def __init__(self, spec: BrokerSpec, broker: int) -> None:
        """Make it empty: no replica is wanted before the first :meth:`update`."""
        self._spec = spec
        self._broker = BrokerId(broker)
        self._image = MetadataImage()
        self._names: dict[TopicPartition, str] = {}
        self._partitions: dict[str, TopicPartition] = {}
        self._adding: set[TopicPartition] = set()
        """Partitions that a reassignment adds to this broker, and whose replica here is not in sync yet."""
        self.by_name: dict[str, Wanted] = {}

    def update(self, image: MetadataImage, touched: Touched) -> set[str]:
        """Take in new metadata; returns the names of replicas that may have changed."""
        self._image = image
        pace = len(self._adding)
        partitions = touched.among(image)
        partitions.update(part for part in self._names if touched.everything or part.topic in touched.topics)
        names: set[str] = set()
        for partition in partitions:
            names.update(self._look(partition))
        if len(self._adding) != pace:
            names.update(self._names[partition] for partition in self._adding)
        return names

    def _look(self, partition: TopicPartition) -> Iterable[str]:
        """Bring one partition up to date; yields the names of the replica it had here, and of the one it has now."""
        before = self._names.pop(partition, None)
        if before is not None:
            del self.by_name[before]
            del self._partitions[before]
            yield before
        self._adding.discard(partition)
        state = self._image.partition(partition)
        place = None if state is None else state.place(self._broker)
        if state is None or place is None or state.asleep is not None:
            return
        if self._broker in state.adding and self._broker not in state.isr:
            self._adding.add(partition)
        name = name_of(state, self._broker)
        self._names[partition] = name
        self._partitions[name] = partition
        self.by_name[name] = Wanted(place, state.replicas.index(self._broker))
        yield name

    def spec(self, name: str) -> ReplicaSpec | None:
        """Return the specification of a wanted replica; None if newer metadata, not taken in yet, no longer has it."""
        image, spec = self._image, self._spec
        state = image.partition(self._partitions[name])
        if state is None or state.asleep is not None or name_of(state, self._broker) != name:
            return None
        return ReplicaSpec(
            topic_id=state.topic_id,
            topic=state.partition.topic,
            partition=state.partition.partition,
            broker=self._broker,
            data_directory=spec.folder,
            secret=spec.secret,
            replication_factor=state.replication_factor,
            topic_config=dict(image.topics[state.partition.topic].config),
            cluster_config=dict(image.config),
            host=spec.host,
            allow_plaintext=spec.allow_plaintext,
            catch_up_bytes_per_s=catch_up_rate(image.config, len(self._adding)) if self._is_added(state) else 0,
            as_of=image.version,
        )

    def _is_added(self, state: PartitionState) -> bool:
        return self._broker in state.adding


def name_of(state: PartitionState, broker: int) -> str:
    """Return the name of a broker's replica of a partition."""
    return replica_name(state.partition.topic, state.partition.partition, broker, state.topic_id)


def replica_named(image: MetadataImage, name: str, broker: int) -> PartitionState | None:
    """Return the partition of a broker's replica of this name, by the metadata; None = it has no such replica."""
    partition = partition_of_replica(name)
    state = None if partition is None else image.partition(partition)
    is_held = state is not None and state.place(BrokerId(broker)) is not None and name_of(state, broker) == name
    return state if is_held else None


def holds(image: MetadataImage, topic: str, partition: int, topic_id: str, broker: int) -> bool:
    """Return whether a broker has a replica of a partition, by the metadata, awake or asleep."""
    state = image.partition(TopicPartition(topic, partition), topic_id)
    return state is not None and state.place(BrokerId(broker)) is not None
