"""Parts of the metadata image: brokers, coordinators, topics, and the tables that hold them.

Changed only by metadata records (``applying.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.base.features import FIRST, FIRST_LEVEL, LevelRange
from raylog.base.ids import (
    NO_LEADER,
    BrokerId,
    ControllerEpoch,
    Incarnation,
    LeaderEpoch,
    ProducerId,
    TopicPartition,
)
from raylog.core.configuration.altering import ClusterValues
from raylog.core.configuration.config import ClusterConfig, doze_after_ms
from raylog.core.metadata.capacity import UNKNOWN, Bound, Capacity
from raylog.core.partition import PartitionState

NO_CONTROLLER: Final = ControllerEpoch(0)
FIRST_PRODUCER: Final = ProducerId(0)
AWAKE_KEY: Final = "replica.awake.max"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One broker: its last registration, and whether it is online."""

    broker: BrokerId
    incarnation: Incarnation
    node_id: str
    host: str
    port: int
    directory_id: str
    levels: LevelRange = FIRST
    """The feature levels that its release knows."""
    capacity: tuple[int, ...] = ()
    """A :class:`~.capacity.Capacity` as a row: what its machine and process have; empty = not known."""
    online: bool = True
    stopped: bool = False
    """Whether a stop was requested, and no resume since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """One coordinator: kind "group" or "transaction", index of its partition, its epoch, and its endpoint."""

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
        """Whether the topic is internal: its name begins with ``__``."""
        return self.name.startswith("__")


@dataclass(slots=True)
class ImageTables:
    """The cluster at one version: fields and lookups."""

    version: int = 0
    """Number of records applied since the cluster was created."""
    cluster_id: str = ""
    """Empty = no cluster has been created yet."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The cluster's settings in force; set by :meth:`configure` alone."""
    given_config: Mapping[str, str] = field(default_factory=dict)
    """Settings given at starts of the cluster."""
    altered_config: Mapping[str, str] = field(default_factory=dict)
    """Settings altered while it ran. They rank above the given ones, some of them from the next start on."""
    start: str = ""
    """Identity of the start since which the cluster runs; empty = not known."""
    _settings: ClusterConfig | None = field(default=None, compare=False, repr=False)
    controller_epoch: ControllerEpoch = NO_CONTROLLER
    feature_level: int = FIRST_LEVEL
    """The cluster's feature level, see ``base/features.py``."""
    brokers: dict[BrokerId, BrokerImage] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    awake: Counter[BrokerId] = field(default_factory=Counter)
    """Number of replicas of awake partitions, by broker."""
    topic_names: dict[str, str] = field(default_factory=dict)
    """The name of each topic by its id."""
    coordinators: dict[tuple[str, int], Coordinator] = field(default_factory=dict)
    deleted_topics: dict[str, None] = field(default_factory=dict)
    """Ids of the topics that were deleted last, oldest first; brokers may remove their folders."""
    next_producer_id: ProducerId = FIRST_PRODUCER
    log_ids: dict[tuple[TopicPartition, BrokerId], str] = field(default_factory=dict)
    """Identity of the log with which each replica last registered; no entry = the log has none."""
    lost_logs: dict[tuple[TopicPartition, BrokerId], str] = field(default_factory=dict)
    """ISR members that returned without their log, and the lost log's id; see :class:`~.records.ReplicaLogLost`."""
    removed_replicas: dict[tuple[TopicPartition, BrokerId], LeaderEpoch] = field(default_factory=dict)
    """Replicas that reassignments took away, and the last leader epoch they may know; their folders may be removed."""
    voters: Mapping[str, str] = field(default_factory=dict)
    """Identity of the metadata log's copy on each voter, by broker id; empty = none has been entered."""

    # ------------------------------------------------------------ settings

    def configure(self, values: ClusterValues) -> None:
        """Take over the cluster's settings; only for records."""
        self.config, self.given_config, self.altered_config = values.config, values.given, values.altered
        self.start, self._settings = values.start, None

    @property
    def values(self) -> ClusterValues:
        """The cluster's settings by their sources."""
        return ClusterValues(self.config, self.given_config, self.altered_config, self.start)

    @property
    def settings(self) -> ClusterConfig:
        """The cluster's settings in force, as values. Read them at each use: they may be altered at any time."""
        if self._settings is None:
            self._settings = ClusterConfig.from_dict(self.config)
        return self._settings

    # ------------------------------------------------------------ lookups

    def topic(self, name: str, topic_id: str | None = None) -> TopicImage | None:
        """Return the topic of that name, or None when there is none or its id is not ``topic_id``."""
        found = self.topics.get(name)
        return None if found is None or (topic_id is not None and found.topic_id != topic_id) else found

    def partition(self, partition: TopicPartition, topic_id: str | None = None) -> PartitionState | None:
        """Return a partition's state; None when its topic is unknown, is another one, or has fewer partitions."""
        topic = self.topic(partition.topic, topic_id)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def partitions(self) -> Iterator[PartitionState]:
        """Iterate over all partitions, by topic name and number."""
        for name in sorted(self.topics):
            yield from self.topics[name].partitions

    def leader_of(self, state: PartitionState) -> BrokerId:
        """Return the broker that leads a partition now, or NO_LEADER.

        A partition that sleeps keeps its leader in its state while that broker is offline or stopped; the answer is
        NO_LEADER then.
        """
        if state.asleep is None:
            return state.leader
        broker = self.brokers.get(state.leader)
        return state.leader if broker is not None and broker.online and not broker.stopped else NO_LEADER

    def online_brokers(self) -> list[BrokerImage]:
        """Return the brokers that run, by id."""
        return [broker for _, broker in sorted(self.brokers.items()) if broker.online]

    def awake_bound(self, broker: BrokerId, config: Mapping[str, str] | None = None) -> Bound | None:
        """Return how many replicas a broker may have awake; None = no bound.

        ``config``: settings of the cluster to use instead of those in force.
        """
        config = self.config if config is None else config
        stated = int(config.get(AWAKE_KEY, "-1"))
        found = self.brokers.get(broker)
        capacity = UNKNOWN if found is None else Capacity.from_row(found.capacity)
        dozes = doze_after_ms({}, config) >= 0
        return capacity.awake(stated=stated, dozes=dozes, sharing=self.sharing(broker))

    def declared_bound(self, broker: BrokerId) -> Bound | None:
        """Return how many replicas a broker may have, awake or asleep; None = no bound."""
        found = self.brokers.get(broker)
        return None if found is None else Capacity.from_row(found.capacity).declared(sharing=self.sharing(broker))

    def sharing(self, broker: BrokerId) -> int:
        """Return how many online brokers share this broker's machine, itself included; at least 1."""
        found = self.brokers.get(broker)
        if found is None:
            return 1
        return max(1, sum(other.online and other.node_id == found.node_id for other in self.brokers.values()))

    def is_stopped(self, broker: BrokerId) -> bool:
        """Return whether a stop of the broker was requested, and no resume since."""
        found = self.brokers.get(broker)
        return found is not None and found.stopped
