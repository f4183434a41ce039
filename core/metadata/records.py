"""The metadata records: the controller's decisions, written to the metadata log in order.

Their sum is :class:`~raylog.core.metadata.image.MetadataImage`. Written by the controller, replayed by its next
incarnation, and sent to brokers. Each record has a wire form, a list that begins with the record's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from raylog.base.errors import InvalidRequest
from raylog.base.features import FIRST_LEVEL
from raylog.base.ids import BrokerId, ControllerEpoch, Incarnation, LeaderEpoch, PartitionEpoch, ProducerId
from raylog.core.partition import NO_ELECTION_YET
from raylog.protocol.message import Message, read

RECORD_TYPES: dict[str, type[MetadataRecord]] = {}
"""Every record type by the name it has on the wire."""

_ANOTHER_RELEASE: Final = (
    "it was written by another release of Raylog, a newer one or one from before 1.0.0; install that release here, or "
    "begin with an empty data directory"
)


class MetadataRecord(Message, frozen=True):
    """Root of the metadata records; a published name never changes its fields' order, it only gains fields."""

    LEVEL: ClassVar[int] = FIRST_LEVEL
    """The feature level that the cluster must have before a record of this type is written."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Enter the record type into the registry under its own name."""
        super().__init_subclass__(**options)
        RECORD_TYPES[cls.__name__] = cls

    def to_wire(self) -> list[object]:
        """Return the msgpack form: the name, then the fields in order."""
        return [type(self).__name__, *(_plain(getattr(self, name)) for name in self.__struct_fields__)]


def record_from_wire(row: Sequence[object]) -> MetadataRecord:
    """Read a record's msgpack form; raises ValueError for a name that this release does not know, or a damaged record.

    Fields that a later release appended are ignored: it appends a field only where ignoring it does no harm; otherwise
    it adds a record type, under a feature level. Fields that an earlier release lacks have their defaults.
    """
    name = str(row[0]) if row else ""
    kind = RECORD_TYPES.get(name)
    if kind is None:
        raise ValueError(f"unknown metadata record {name!r}: {_ANOTHER_RELEASE}")
    try:
        return read(kind, row[1:], f"metadata record {name} cannot be read")
    except InvalidRequest as error:
        raise ValueError(f"{error.message.removesuffix('.')}: {_ANOTHER_RELEASE}") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


class ClusterCreated(MetadataRecord, frozen=True):
    """The first record of every cluster: its identity and its first configuration."""

    cluster_id: str
    config: Mapping[str, str]


class ClusterAltered(MetadataRecord, frozen=True):
    """The cluster's configuration is now this, all of it, with its sources.

    ``config``: the values in force from here on. ``given``: values given at starts of the cluster. ``altered``: values
    altered while it ran, some of which may wait for the next start. ``start``: identity of the start since which the
    cluster runs; empty = not known.
    """

    config: Mapping[str, str]
    given: Mapping[str, str]
    altered: Mapping[str, str]
    start: str = ""


class ControllerStarted(MetadataRecord, frozen=True):
    """A controller started; earlier controllers may not write after this."""

    controller_epoch: ControllerEpoch


class BrokerRegistered(MetadataRecord, frozen=True):
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


class FeatureLevelRaised(MetadataRecord, frozen=True):
    """The cluster may use the features of this level; brokers that do not know the level may not register."""

    level: int


class BrokerOffline(MetadataRecord, frozen=True):
    """The broker's process has ended or timed out; its replicas have sessions of their own and are unaffected."""

    broker: BrokerId


class BrokerStopped(MetadataRecord, frozen=True):
    """A stop of the broker was requested: its replicas neither lead nor stay in an ISR that has other members.

    It lasts until :class:`BrokerResumed`; a restart of the process does not end it.
    """

    broker: BrokerId


class BrokerResumed(MetadataRecord, frozen=True):
    """A resume of the stopped broker was requested."""

    broker: BrokerId


class TopicCreated(MetadataRecord, frozen=True):
    """A topic exists: ``partitions`` has the replicas of each partition, preferred leader in front, all in sync."""

    topic_id: str
    topic: str
    config: Mapping[str, str]
    partitions: tuple[tuple[BrokerId, ...], ...]


class PartitionsAdded(MetadataRecord, frozen=True):
    """The topic has more partitions: ``partitions`` has the replicas of each new one, as :class:`TopicCreated` has."""

    topic_id: str
    topic: str
    partitions: tuple[tuple[BrokerId, ...], ...]


class TopicConfigured(MetadataRecord, frozen=True):
    """The topic's own configuration is now this, all of it; settings that are not named have their defaults."""

    topic_id: str
    topic: str
    config: Mapping[str, str]


class TopicDeleted(MetadataRecord, frozen=True):
    """The topic is deleted, with its partitions; a later topic of the same name is another one."""

    topic_id: str
    topic: str


class TopicsDeletedBefore(MetadataRecord, frozen=True):
    """The ids of topics that were deleted, oldest first. Only in snapshots, in the place of their own records.

    A broker that was offline removes the folders of these topics, and of no others that it does not know.
    """

    topic_ids: tuple[str, ...]


class PartitionChanged(MetadataRecord, frozen=True):
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


class PartitionAsleep(PartitionChanged, frozen=True, kw_only=True):
    """As :class:`PartitionChanged`, of a partition that sleeps from here on: none of its replicas has a process.

    ``asleep`` is a :class:`~raylog.core.partition.SleepPoint` as a row. The next :class:`PartitionChanged` wakes it.
    """

    asleep: tuple[int, ...]


class PartitionsBornAsleep(MetadataRecord, frozen=True):
    """The new partitions from ``first`` up to ``end`` (exclusive) sleep; each is led by the first of its replicas."""

    topic: str
    first: int
    end: int


class ReplicaPlaced(MetadataRecord, frozen=True):
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


class ReplicaLogLost(MetadataRecord, frozen=True):
    """An ISR member returned without its log. It may not lead again until it has left the ISR and caught up.

    The mark ends with the first :class:`PartitionChanged` that takes the replica out of the ISR, or that elects it
    anyway (an unclean election, or the log is back). ``log_id`` identifies the lost log if it returns.
    """

    topic: str
    partition: int
    broker: BrokerId
    log_id: str = ""


class ReplicaRemovedBefore(MetadataRecord, frozen=True):
    """A reassignment took this replica away, after this leader epoch. Only in snapshots, in place of its own record.

    A broker that was offline removes the folders of these replicas, and of no others of a topic that exists.
    """

    topic: str
    partition: int
    broker: BrokerId
    leader_epoch: LeaderEpoch


class ProducerIdsAllocated(MetadataRecord, frozen=True):
    """Every producer id below ``next_id`` has been handed out."""

    next_id: ProducerId


class CoordinatorPlaced(MetadataRecord, frozen=True):
    """The coordinator ``index`` of that kind runs here, in this ``epoch``; port 0 = it does not run."""

    kind: str
    index: int
    epoch: int
    producer_id: ProducerId
    host: str
    port: int


class VotersEntered(MetadataRecord, frozen=True):
    """The configuration of the metadata quorum: the identity of each voter's log, by broker id."""

    voters: Mapping[str, str]
