"""Which partitions some metadata records concern, so that a reader need not look at all others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raylog.base.ids import TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import (
    BrokerResumed,
    BrokerStopped,
    ClusterAltered,
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
_OF_ALL = (ClusterAltered, BrokerStopped, BrokerResumed)


@dataclass(slots=True)
class Touched:
    """The partitions and topics that some records concern; grows with :meth:`note`, and is emptied by its reader."""

    partitions: set[TopicPartition] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    """Topics any of whose partitions may have changed."""
    deleted: set[str] = field(default_factory=set)
    """Names of topics that were deleted; another one may have the name by now."""
    everything: bool = False
    """Whether a record concerns all partitions: the cluster's settings, or a broker's stop or resume."""

    def note(self, records: Iterable[MetadataRecord]) -> None:
        """Add what these records concern."""
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
        """Add what other records concern."""
        self.partitions |= other.partitions
        self.topics |= other.topics
        self.deleted |= other.deleted
        self.everything |= other.everything

    def among(self, image: MetadataImage) -> set[TopicPartition]:
        """Return the touched partitions, and all partitions that the image has of touched topics."""
        if self.everything:
            return {state.partition for state in image.partitions()} | self.partitions
        found = set(self.partitions)
        for name in self.topics:
            topic = image.topics.get(name)
            if topic is not None:
                found.update(state.partition for state in topic.partitions)
        return found
