"""Which partitions metadata records are about, so that their readers need not look at all others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raylog.core.ids import TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import (
    BrokerResumed,
    BrokerStopped,
    ClusterAltered,
    ClusterConfigured,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    PartitionsBornAsleep,
    ReplicaPlaced,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)

_OF_PARTITION = (PartitionChanged, ReplicaPlaced)
_OF_TOPIC = (TopicCreated, TopicConfigured, PartitionsAdded, PartitionsBornAsleep)
_OF_ALL = (ClusterAltered, ClusterConfigured, BrokerStopped, BrokerResumed)


@dataclass(slots=True)
class Touched:
    """What some records were about; grows with :meth:`note`, and is emptied by its reader."""

    partitions: set[TopicPartition] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    """Topics any of whose partitions may have changed."""
    deleted: set[str] = field(default_factory=set)
    """Names of topics that were deleted; another one may have the name by now."""
    everything: bool = False

    def note(self, records: Iterable[MetadataRecord]) -> None:
        """Take in records."""
        for record in records:
            if isinstance(record, _OF_PARTITION):
                self.partitions.add(TopicPartition(record.topic, record.partition))
            elif isinstance(record, _OF_TOPIC):
                self.topics.add(record.topic)
            elif isinstance(record, TopicDeleted):
                self.topics.add(record.topic)
                self.deleted.add(record.topic)
            elif isinstance(record, _OF_ALL):
                self.everything = True

    def add(self, other: Touched) -> None:
        """Take in what other records were about."""
        self.partitions |= other.partitions
        self.topics |= other.topics
        self.deleted |= other.deleted
        self.everything |= other.everything

    def among(self, image: MetadataImage) -> set[TopicPartition]:
        """Return the touched partitions, those of touched topics as far as the image has them."""
        if self.everything:
            return {state.partition for state in image.partitions()} | self.partitions
        found = set(self.partitions)
        for name in self.topics:
            topic = image.topics.get(name)
            if topic is not None:
                found.update(state.partition for state in topic.partitions)
        return found
