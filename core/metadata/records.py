"""The metadata records: the controller's decisions, written to the metadata log in order.

Their sum is :class:`~raylog.core.metadata.image.MetadataImage`. Written by the controller, replayed by its next
incarnation, and sent to brokers. Each record has a wire form, a list that begins with the record's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar, Final, TypeVar

from raylog.base.features import FIRST_LEVEL
from raylog.base.ids import BrokerId, ControllerEpoch, Incarnation, LeaderEpoch, PartitionEpoch, ProducerId
from raylog.core.partition import NO_ELECTION_YET

RECORD_TYPES: dict[str, type[MetadataRecord]] = {}
"""Every record type by the name it has on the wire."""

RecordT = TypeVar("RecordT", bound="type[MetadataRecord]")

_ANOTHER_RELEASE: Final = (
    "it was written by another release of Raylog, a newer one or one from before 1.0.0; install that release here, or "
    "begin with an empty data directory"
)


class MetadataRecord:
    """Root of the metadata records."""

    __slots__ = ()
    LEVEL: ClassVar[int] = FIRST_LEVEL
    """The feature level that the cluster must have before a record of this type is written."""
    NAME: ClassVar[str] = ""
    """The record's name on the wire; a published name never changes its fields' order, it only gains fields."""

    def to_wire(self) -> list[object]:
        """Return the msgpack form: the name, then the fields in order."""
        return [self.NAME, *(_plain(getattr(self, name)) for name, _, _ in _layout(type(self)))]


def record_from_wire(row: Sequence[object]) -> MetadataRecord:
    """Read a record's msgpack form; raises ValueError for a name that this release does not know, or a damaged record.

    Fields that a later release appended are ignored: it appends a field only where ignoring it does no harm; otherwise
    it adds a record type, under a feature level. Fields that an earlier release lacks have their defaults.
    """
    name = str(row[0]) if row else ""
    kind = RECORD_TYPES.get(name)
    if kind is None:
        raise ValueError(f"unknown metadata record {name!r}: {_ANOTHER_RELEASE}")
    layout = _layout(kind)
    values = row[1:]
    required = max((place for place, (_, _, optional) in enumerate(layout, start=1) if not optional), default=0)
    if len(values) < required:
        raise ValueError(f"metadata record {name} has {len(values)} fields where {required} are needed; it is damaged")
    try:
        return kind(**{name: _READERS[reader](value) for (name, reader, _), value in zip(layout, values, strict=False)})
    except ValueError as error:
        raise ValueError(f"metadata record {name} cannot be read ({error}): {_ANOTHER_RELEASE}") from None


def _record(kind: RecordT) -> RecordT:
    """Class decorator: enter the record type into the registry under its own name."""
    kind.NAME = kind.__name__
    RECORD_TYPES[kind.__name__] = kind
    return kind


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCreated(MetadataRecord):
    """The first record of every cluster: its identity and its first configuration."""

    cluster_id: str
    config: Mapping[str, str]


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAltered(MetadataRecord):
    """The cluster's configuration is now this, all of it, with its sources.

    ``config``: the values in force from here on. ``given``: values given at starts of the cluster. ``altered``: values
    altered while it ran, some of which may wait for the next start. ``start``: identity of the start since which the
    cluster runs; empty = not known.
    """

    config: Mapping[str, str]
    given: Mapping[str, str]
    altered: Mapping[str, str]
    start: str = ""


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStarted(MetadataRecord):
    """A controller started; earlier controllers may not write after this."""

    controller_epoch: ControllerEpoch


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered(MetadataRecord):
    """A broker runs, at this endpoint, as this incarnation, on this data directory."""

    broker: BrokerId
    incarnation: Incarnation
    node_id: str
    host: str
    port: int
    directory_id: str
    lowest_level: int = FIRST_LEVEL
    highest_level: int = FIRST_LEVEL
    """The feature levels that the broker's release knows."""
    capacity: tuple[int, ...] = ()
    """A :class:`~.capacity.Capacity` as a row: what its machine and process have; empty = not known."""


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRaised(MetadataRecord):
    """The cluster may use the features of this level; brokers that do not know the level may not register."""

    level: int


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOffline(MetadataRecord):
    """The broker's process has ended or timed out; its replicas have sessions of their own and are unaffected."""

    broker: BrokerId


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStopped(MetadataRecord):
    """A stop of the broker was requested: its replicas neither lead nor stay in an ISR that has other members.

    It lasts until :class:`BrokerResumed`; a restart of the process does not end it.
    """

    broker: BrokerId


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerResumed(MetadataRecord):
    """A resume of the stopped broker was requested."""

    broker: BrokerId


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated(MetadataRecord):
    """A topic exists: ``partitions`` has the replicas of each partition, preferred leader in front, all in sync."""

    topic_id: str
    topic: str
    config: Mapping[str, str]
    partitions: tuple[tuple[BrokerId, ...], ...]


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded(MetadataRecord):
    """The topic has more partitions: ``partitions`` has the replicas of each new one, as :class:`TopicCreated` has."""

    topic_id: str
    topic: str
    partitions: tuple[tuple[BrokerId, ...], ...]


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigured(MetadataRecord):
    """The topic's own configuration is now this, all of it; settings that are not named have their defaults."""

    topic_id: str
    topic: str
    config: Mapping[str, str]


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(MetadataRecord):
    """The topic is deleted, with its partitions; a later topic of the same name is another one."""

    topic_id: str
    topic: str


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeletedBefore(MetadataRecord):
    """The ids of topics that were deleted, oldest first. Only in snapshots, in the place of their own records.

    A broker that was offline removes the folders of these topics, and of no others that it does not know.
    """

    topic_ids: tuple[str, ...]


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged(MetadataRecord):
    """The committed state of a partition, all of it; ``partition_epoch`` is one more than before."""

    topic: str
    partition: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    partition_epoch: PartitionEpoch
    elr: tuple[BrokerId, ...] = ()
    unclean_leader_epoch: LeaderEpoch = NO_ELECTION_YET
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAsleep(PartitionChanged):
    """As :class:`PartitionChanged`, of a partition that sleeps from here on: none of its replicas has a process.

    ``asleep`` is a :class:`~raylog.core.partition.SleepPoint` as a row. The next :class:`PartitionChanged` wakes it.
    """

    asleep: tuple[int, ...]


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsBornAsleep(MetadataRecord):
    """The new partitions from ``first`` up to ``end`` (exclusive) sleep; each is led by the first of its replicas."""

    topic: str
    first: int
    end: int


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlaced(MetadataRecord):
    """One replica runs as this incarnation at this endpoint; port 0 = it does not run.

    ``log_id`` is the identity of the log that it runs on; empty = the same as before.
    """

    topic: str
    partition: int
    broker: BrokerId
    incarnation: Incarnation
    host: str
    port: int
    log_id: str = ""


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogLost(MetadataRecord):
    """An ISR member returned without its log. It may not lead again until it has left the ISR and caught up.

    The mark ends with the first :class:`PartitionChanged` that takes the replica out of the ISR, or that elects it
    anyway (an unclean election, or the log is back). ``log_id`` identifies the lost log if it returns.
    """

    topic: str
    partition: int
    broker: BrokerId
    log_id: str = ""


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRemovedBefore(MetadataRecord):
    """A reassignment took this replica away, after this leader epoch. Only in snapshots, in place of its own record.

    A broker that was offline removes the folders of these replicas, and of no others of a topic that exists.
    """

    topic: str
    partition: int
    broker: BrokerId
    leader_epoch: LeaderEpoch


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsAllocated(MetadataRecord):
    """Every producer id below ``next_id`` has been handed out."""

    next_id: ProducerId


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorPlaced(MetadataRecord):
    """The coordinator ``index`` of that kind runs here, in this ``epoch``; port 0 = it does not run."""

    kind: str
    index: int
    epoch: int
    producer_id: ProducerId
    host: str
    port: int


@_record
@dataclass(frozen=True, slots=True, kw_only=True)
class VotersEntered(MetadataRecord):
    """The configuration of the metadata quorum: the identity of each voter's log, by broker id."""

    voters: Mapping[str, str]


def _layout(kind: type[MetadataRecord]) -> list[tuple[str, str, bool]]:
    """Return (name, annotation, optional) of each field, in the order of the wire form."""
    return [
        (field.name, str(field.type), field.default is not MISSING)
        for field in fields(kind)  # type: ignore[arg-type]  # every registered record is a dataclass
    ]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"expected a whole number in a metadata record, got {value!r}")


def _str(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"expected a string in a metadata record, got {value!r}")


def _rows(value: object) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
        return value
    raise ValueError(f"expected a list in a metadata record, got {value!r}")


def _config(value: object) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {_str(key): _str(item) for key, item in value.items()}
    raise ValueError(f"expected a mapping in a metadata record, got {value!r}")


def _brokers(value: object) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(_int(broker)) for broker in _rows(value))


_READERS: Mapping[str, Callable[[object], object]] = {
    "int": _int,
    "BrokerId": _int,
    "ControllerEpoch": _int,
    "Incarnation": _int,
    "LeaderEpoch": _int,
    "PartitionEpoch": _int,
    "ProducerId": _int,
    "str": _str,
    "Mapping[str, str]": _config,
    "tuple[BrokerId, ...]": _brokers,
    "tuple[int, ...]": lambda value: tuple(_int(item) for item in _rows(value)),
    "tuple[str, ...]": lambda value: tuple(_str(item) for item in _rows(value)),
    "tuple[tuple[BrokerId, ...], ...]": lambda value: tuple(_brokers(row) for row in _rows(value)),
}
