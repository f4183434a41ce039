"""Committed state of a partition: leader, ISR, epochs, endpoints.

Written by the controller, applied by replicas, read by clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raylog.base.ids import (
    NO_EPOCH,
    NO_INCARNATION,
    NO_LEADER,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicPartition,
)

NO_ELECTION_YET = LeaderEpoch(0)
NO_CHANGE_YET = PartitionEpoch(0)
_LATER: tuple[object, ...] = ((), NO_ELECTION_YET, (), (), ())
"""Defaults of the wire form's fields after ``places``, which earlier versions do not send."""


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
        broker, incarnation, host, port, *_ = row
        return cls(
            broker=BrokerId(_int(broker)), incarnation=Incarnation(_int(incarnation)), host=str(host), port=_int(port)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepPoint:
    """The log of a partition that sleeps, as all its in-sync replicas have it on disk (ADR 0042).

    Invariant: ``log_start_offset <= end_offset``, and ``end_offset`` is the high watermark.
    """

    log_start_offset: Offset
    end_offset: Offset
    last_epoch: LeaderEpoch
    """Leader epoch of the last record; -1 = the log is empty."""
    oldest_ms: int
    """Largest timestamp in the oldest segment, in milliseconds since 1970; -1 = no record. `retention.ms` counts from
    it."""
    size_bytes: int

    def to_row(self) -> tuple[int, ...]:
        """Return the wire form, whole numbers in the order of the fields."""
        return self.log_start_offset, self.end_offset, self.last_epoch, self.oldest_ms, self.size_bytes

    @classmethod
    def from_row(cls, row: Sequence[object]) -> SleepPoint:
        """Read the wire form; what a later release adds is ignored."""
        start, end, last_epoch, oldest_ms, size_bytes, *_ = map(_int, row)
        return cls(
            log_start_offset=Offset(start),
            end_offset=Offset(end),
            last_epoch=LeaderEpoch(last_epoch),
            oldest_ms=oldest_ms,
            size_bytes=size_bytes,
        )


NEVER_WRITTEN: Final = SleepPoint(
    log_start_offset=Offset(0), end_offset=Offset(0), last_epoch=NO_EPOCH, oldest_ms=-1, size_bytes=0
)
"""Sleep point of a partition that was created asleep: its log is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Leader, ISR and replica set of one partition at one partition epoch.

    ``replicas`` has the preferred leader in front. ``isr`` is never empty: the last member stays in it even when it is
    down. ``leader`` is :data:`NO_LEADER` while no ISR member is alive. ``places`` has one entry per replica.
    ``elr``: replicas outside the ISR that hold everything committed (eligible leader replicas, KIP-966).
    ``unclean_leader_epoch``: the last leader epoch whose leader came from outside ISR and ELR; committed records may be
    missing from that epoch on. 0 = there was none. ``adding`` and ``removing``: the replicas that a reassignment under
    way brings in and takes out; both are part of ``replicas`` until it is complete. ``asleep``: set while no replica
    has a process. Then the leader's broker answers for the partition, and every ISR member's log ends at the sleep
    point's ``end_offset``. None = it is awake. A partition that sleeps always has a leader, whose broker may be
    offline.
    """

    topic_id: str
    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId = NO_LEADER
    leader_epoch: LeaderEpoch = NO_ELECTION_YET
    partition_epoch: PartitionEpoch = NO_CHANGE_YET
    places: tuple[ReplicaPlace, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    unclean_leader_epoch: LeaderEpoch = NO_ELECTION_YET
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    asleep: SleepPoint | None = None

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replica set after the reassignment under way, if any, is complete; preferred leader in front."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[BrokerId, ...]:
        """The replica set if the reassignment under way, if any, is cancelled."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    @property
    def replication_factor(self) -> int:
        """Replication factor that the topic's settings count with: the smaller of before and after a reassignment.

        So a reassignment under way raises it only on completion.
        """
        return min(len(self.target), len(self.original))

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
            list(self.elr),
            self.unclean_leader_epoch,
            list(self.adding),
            list(self.removing),
            [] if self.asleep is None else list(self.asleep.to_row()),
        ]

    @classmethod
    def from_wire(cls, row: Sequence[object]) -> PartitionState:
        """Read the msgpack form: fields after ``places`` may be missing, and what a later release adds is ignored."""
        topic_id, topic, partition, replicas, isr, leader, leader_epoch, partition_epoch, places, *later = row
        elr, unclean_leader_epoch, adding, removing, asleep = (*later[:5], *_LATER[len(later) :])
        point = _list(asleep)
        return cls(
            topic_id=str(topic_id),
            partition=TopicPartition(str(topic), _int(partition)),
            replicas=_brokers(replicas),
            isr=_brokers(isr),
            leader=BrokerId(_int(leader)),
            leader_epoch=LeaderEpoch(_int(leader_epoch)),
            partition_epoch=PartitionEpoch(_int(partition_epoch)),
            places=tuple(ReplicaPlace.from_wire(_list(place)) for place in _list(places)),
            elr=_brokers(elr),
            unclean_leader_epoch=LeaderEpoch(_int(unclean_leader_epoch)),
            adding=_brokers(adding),
            removing=_brokers(removing),
            asleep=SleepPoint.from_row(point) if point else None,
        )


def _int(value: object) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"expected a whole number in a partition state, got {value!r}")


def _brokers(value: object) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(_int(broker)) for broker in _list(value))


def _list(value: object) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
        return value
    raise TypeError(f"expected a list in a partition state, got {value!r}")
