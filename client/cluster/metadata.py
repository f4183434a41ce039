"""A client's metadata cache: brokers, topics, and the leader of each partition.

Pure; `ClusterClient` feeds it with the brokers' answers to `metadata` requests. Brokers learn of changes at different
moments, so an answer may be stale: the newest leader epoch of a partition wins, whichever broker reported it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from raylog.base.errors import UnknownTopicOrPartition
from raylog.client.cluster.discovery import Endpoint
from raylog.protocol.broker import MetadataPartition, MetadataReply


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One live broker."""

    broker: int
    host: str
    port: int
    node_id: str


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition: its leader and epoch, and the endpoints of its replicas (`places` by broker id)."""

    partition: int
    leader: int
    leader_epoch: int
    leader_host: str
    leader_port: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    places: tuple[tuple[int, str, int], ...] = ()
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966): outside the ISR, but with all committed records."""
    unclean_leader_epoch: int = 0
    """The epoch of the last unclean leader election (the leader may have lacked committed records); 0 = none."""
    is_asleep: bool = False
    """Whether it sleeps: none of its replicas has a process. The leader's endpoint is then its broker's, which wakes it
    on a request."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The leader's endpoint; None while there is no leader."""
        return (self.leader_host, self.leader_port) if self.leader_port else None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. `partitions[n]` is partition n; `version` is that of the metadata which the description comes from."""

    topic_id: str
    name: str
    internal: bool
    partitions: tuple[PartitionInfo, ...]
    config: dict[str, Any]
    version: int


class MetadataCache:
    """The newest known metadata. `update` applies a broker's answer; everything else only reads."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.version = -1
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.creates_topics = False
        """Whether the cluster creates a topic on first use (`auto.create.topics.enable`), as last reported."""

    def update(self, reply: MetadataReply, *, is_whole: bool = False) -> set[str]:
        """Apply a broker's metadata; return the names of the topics that changed.

        `is_whole`: the answer covers all topics, so a topic that is missing in it was deleted.
        """
        version = reply.version
        self.cluster_id = reply.cluster_id
        if version >= self.version:
            self.version = version
            self.creates_topics = reply.creates_topics
            self.brokers = {
                row.broker: BrokerInfo(row.broker, row.host, row.port, row.node_id) for row in reply.brokers
            }
        changed = self._drop_missing({topic.topic for topic in reply.topics}, version) if is_whole else set()
        for topic in reply.topics:
            name = topic.topic
            known = self.topics.get(name)
            if topic.error_code:
                is_unknown = topic.error_code == UnknownTopicOrPartition.code
                if is_unknown and known is not None and version >= known.version:
                    del self.topics[name]
                    changed.add(name)
                continue
            rows = tuple(sorted(map(_partition, topic.partitions), key=lambda row: row.partition))
            found = TopicInfo(topic.topic_id, name, topic.is_internal, rows, dict(topic.config), version)
            merged = found if known is None else _merged(known, found)
            self.topics[name] = merged
            if known is None or replace(known, version=merged.version) != merged:
                changed.add(name)
        return changed

    def _drop_missing(self, there: set[str], version: int) -> set[str]:
        missing = {name for name, known in self.topics.items() if name not in there and version >= known.version}
        self.forget_topics(missing)
        return missing

    def topic(self, name: str) -> TopicInfo | None:
        """The topic, or None when it is not known."""
        return self.topics.get(name)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """The partition, or None when it is not known."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def update_leader(self, topic: str, partition: int, leader: object, topic_id: object) -> bool:
        """Apply the leader that an error names, [broker, leader epoch, host, port]; True = it was news (KIP-951).

        `topic_id`: of the topic that the error is about. It matters after a topic was deleted and created again: the
        epochs of the old topic may be higher, and mean nothing for the new one.
        """
        known, info = self.partition(topic, partition), self.topics.get(topic)
        if info is None or topic_id != info.topic_id:
            return False
        match leader:
            case [int(broker), int(epoch), str(host), int(port)]:
                pass
            case _:
                return False
        if known is None or epoch <= known.leader_epoch or not 0 < port < 65_536:
            return False
        found = replace(known, leader=broker, leader_epoch=epoch, leader_host=host, leader_port=port, is_asleep=False)
        rows = (*info.partitions[:partition], found, *info.partitions[partition + 1 :])
        self.topics[topic] = replace(info, partitions=rows)
        return True

    def forget_topics(self, names: Iterable[str]) -> None:
        """Drop topics, so that their next use fetches them again."""
        for name in names:
            self.topics.pop(name, None)


def _partition(row: MetadataPartition) -> PartitionInfo:
    return PartitionInfo(
        row.partition,
        row.leader,
        row.leader_epoch,
        row.leader_host,
        row.leader_port,
        tuple(row.replicas),
        tuple(row.isr),
        tuple((place.broker, place.host, place.port) for place in row.places),
        tuple(row.elr),
        row.unclean_leader_epoch,
        row.is_asleep,
    )


def _merged(known: TopicInfo, found: TopicInfo) -> TopicInfo:
    """The newer of two views of a topic; for each partition the view with the higher leader epoch, else the newer."""
    if known.topic_id != found.topic_id:  # deleted and created again: epochs of the two cannot be compared
        return found if found.version >= known.version else known
    newer, older = (found, known) if found.version >= known.version else (known, found)
    partitions = [
        older.partitions[index]
        if index < len(older.partitions) and older.partitions[index].leader_epoch > row.leader_epoch
        else row
        for index, row in enumerate(newer.partitions)
    ]
    partitions += older.partitions[len(newer.partitions) :]
    return replace(newer, partitions=tuple(partitions))
