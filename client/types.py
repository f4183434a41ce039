"""Value types of the clients: records, their stored positions, and committed offsets.

Used by every client and by Spark's source. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from raylog.core.ids import TopicPartition

__all__ = [
    "ConsumerGroupMetadata",
    "EpochEndOffset",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PreparedTxnState",
    "Record",
    "RecordMetadata",
    "TopicPartition",
]

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
    """Where a sent record was stored. `offset` is -1 when that is not known (acks=0, or a very old duplicate).

    A delayed record gets its offset when it is due: until then it is -1, and so is a partition that its key decides.

    `timestamp_ms` is the record's: the producer's, or the leader's where the topic has LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    schedule: str = ""
    """Of a delayed record: the handle by which it can be cancelled or moved until it is due."""
    replaced: bool | None = None
    """Of a delayed record with a `schedule_id`: whether an earlier one was waiting under that, which is not delivered
    then. False: none was, so an earlier one is delivered, cancelled or never was. None: no id, or not known."""

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
    topic_id: str = field(default="", compare=False, repr=False)
    """Of the topic whose records were read; empty = that which has the name when the offset is committed.

    A topic that is created again has another id: an offset of the earlier one is not committed for it."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer as a member of its group, for offsets that a producer commits with a transaction (KIP-447).

    `generation_id` -1 with an empty `member_id`: of a consumer that assigns its partitions itself.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict, compare=False, repr=False)
    """The topics whose records the consumer has read last, by partition. An offset of a topic that was deleted and
    created again since then is committed for the topic that was read, never for the new one."""


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


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """Result of `offsets_for_leader_epoch`: where the records of an epoch end in the leader's log.

    `leader_epoch`: the requested epoch, or the highest below it that has records.
    """

    leader_epoch: int
    end_offset: int
    """The offset behind the last record of that epoch."""


@dataclass(frozen=True, slots=True)
class PreparedTxnState:
    """The name of a prepared transaction (KIP-939), to be stored where its outcome is decided; `str()` is its text.

    -1 and -1: nothing was sent in it.
    """

    producer_id: int = -1
    epoch: int = -1

    def __str__(self) -> str:
        """As in Kafka: the producer's id and epoch; empty when nothing was sent."""
        return f"{self.producer_id}:{self.epoch}" if self.producer_id >= 0 else ""

    @classmethod
    def parse(cls, text: str) -> PreparedTxnState:
        """The transaction of a text that `str()` has made. Raises ValueError."""
        if not text:
            return cls()
        producer_id, _, epoch = text.partition(":")
        if not (producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"A prepared transaction is written as `producer id:epoch`, not {text!r:.100}.")
        return cls(int(producer_id), int(epoch))
