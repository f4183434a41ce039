"""Names for the small numbers of the protocol. Used everywhere; imports nothing.

Every "end" in Raylog is exclusive: a log end offset is the offset the next record will get.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
"""Position of a record in a partition; the first record has offset 0."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership of one partition; rises by one at every election. 0 = no leader was elected yet."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Version of a partition's committed state; rises by one at every change of leader, ISR or replica set."""

BrokerId = NewType("BrokerId", int)
"""Identity of a data directory, kept in its ``meta.properties``; outlives processes and nodes."""

Incarnation = NewType("Incarnation", int)
"""Incarnation: one run of a process under a name, numbered by the controller; a later run has a larger number."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""Number of a controller's incarnation; rises at every start of the controller."""

ProducerId = NewType("ProducerId", int)

NO_LEADER: Final = BrokerId(-1)
NO_EPOCH: Final = LeaderEpoch(-1)
NO_INCARNATION: Final = Incarnation(-1)

EARLIEST: Final = -2
"""Timestamp that stands for the log start offset in ``list_offsets`` (Kafka's number)."""
LATEST: Final = -1
"""Timestamp that stands for the high watermark in ``list_offsets`` (Kafka's number)."""
MAX_TIMESTAMP: Final = -3
"""Timestamp that stands for the record with the largest timestamp (KIP-734)."""


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return Kafka's spelling, ``topic-partition``."""
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """One partition of one topic; a topic that was created again has another id."""

    topic: str
    topic_id: str
    partition: int
