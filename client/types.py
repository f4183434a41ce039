"""Value types of the clients: records, their stored positions, and committed offsets.

Used by every client and by Spark's source. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from raylog.core.ids import TopicPartition

__all__ = ["OffsetAndMetadata", "OffsetAndTimestamp", "Record", "RecordMetadata", "TopicPartition"]

Header = tuple[str, bytes | None]
"""Name and value. A value may be null, as in Kafka."""


class Record(msgspec.Struct, gc=False):
    """One record as a consumer sees it.

    `gc=False` because a record cannot be part of a reference cycle, and millions of them would keep the collector busy.
    `key` and `value` are bytes, or the results of the consumer's deserializers; `headers` is empty without headers.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[Header, ...]

    @property
    def timestamp(self) -> int:
        """Another name of `timestamp_ms`, known from other clients."""
        return self.timestamp_ms


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where a sent record was stored. `offset` is -1 when that is not known (acks=0, or a very old duplicate)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def timestamp(self) -> int:
        """Another name of `timestamp_ms`."""
        return self.timestamp_ms

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the offset of the next record to read, a note, and the epoch of the last record read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """Result of `offsets_for_times`: the first record at or after the requested time, and its own time (ms)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1

    @property
    def timestamp(self) -> int:
        """Another name of `timestamp_ms`."""
        return self.timestamp_ms
