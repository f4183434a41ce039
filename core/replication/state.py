"""The controller's committed word about a partition. Written by the controller, obeyed by replicas, read by clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raylog.core.ids import (
    NO_INCARNATION,
    NO_LEADER,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    TopicPartition,
)

NO_ELECTION_YET = LeaderEpoch(0)
NO_CHANGE_YET = PartitionEpoch(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """Where one replica runs: its process (incarnation) and the endpoint it listens on; port 0 = not running."""

    broker: BrokerId
    incarnation: Incarnation = NO_INCARNATION
    host: str = ""
    port: int = 0

    def to_wire(self) -> list[object]:
        """Return the msgpack form: [broker, incarnation, host, port]."""
        return [self.broker, self.incarnation, self.host, self.port]

    @classmethod
    def from_wire(cls, row: Sequence[object]) -> ReplicaPlace:
        """Read the msgpack form."""
        broker, incarnation, host, port = row
        return cls(
            broker=BrokerId(_int(broker)), incarnation=Incarnation(_int(incarnation)), host=str(host), port=_int(port)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Leader, ISR and replica set of one partition at one partition epoch.

    ``replicas`` has the preferred leader in front. ``isr`` is never empty: the last member stays in it even when it is
    down. ``leader`` is :data:`NO_LEADER` while no ISR member is alive. ``places`` has one entry per replica.
    """

    topic_id: str
    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId = NO_LEADER
    leader_epoch: LeaderEpoch = NO_ELECTION_YET
    partition_epoch: PartitionEpoch = NO_CHANGE_YET
    places: tuple[ReplicaPlace, ...] = ()

    def place(self, broker: BrokerId) -> ReplicaPlace | None:
        """Return where that broker's replica runs, or None when it holds none."""
        for place in self.places:
            if place.broker == broker:
                return place
        return None

    def to_wire(self) -> list[object]:
        """Return the msgpack form, read by :meth:`from_wire`."""
        return [
            self.topic_id,
            self.partition.topic,
            self.partition.partition,
            list(self.replicas),
            list(self.isr),
            self.leader,
            self.leader_epoch,
            self.partition_epoch,
            [place.to_wire() for place in self.places],
        ]

    @classmethod
    def from_wire(cls, row: Sequence[object]) -> PartitionState:
        """Read the msgpack form."""
        topic_id, topic, partition, replicas, isr, leader, leader_epoch, partition_epoch, places = row
        return cls(
            topic_id=str(topic_id),
            partition=TopicPartition(str(topic), _int(partition)),
            replicas=tuple(BrokerId(_int(broker)) for broker in _list(replicas)),
            isr=tuple(BrokerId(_int(broker)) for broker in _list(isr)),
            leader=BrokerId(_int(leader)),
            leader_epoch=LeaderEpoch(_int(leader_epoch)),
            partition_epoch=PartitionEpoch(_int(partition_epoch)),
            places=tuple(ReplicaPlace.from_wire(_list(place)) for place in _list(places)),
        )


def _int(value: object) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"expected a whole number in a partition state, got {value!r}")


def _list(value: object) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
        return value
    raise TypeError(f"expected a list in a partition state, got {value!r}")
