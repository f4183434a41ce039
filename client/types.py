"""Value types of the clients: records, where they are stored, and committed offsets.

Used by every client and by Spark's source. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from raylog.base.ids import TopicPartition

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
    """One record, as a consumer returns it.

    `key` and `value` are bytes or None, or the results of the consumer's deserializers. `headers` may be empty.
    (`gc=False`: a record is not part of reference cycles, and millions of records would slow the garbage collector.)
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
        """Another name of `timestamp_ms`, as in other clients."""
        return self.timestamp_ms


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where a sent record was stored. `offset` is -1 if it is not known (acks=0, or a very old duplicate).

    A delayed record gets its offset when it is due: here it is -1, and so is `partition` if the key will choose it.
    `timestamp_ms` is that of the stored record: the producer's, or the leader's if the topic has LogAppendTime.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    schedule: str = ""
    """The handle of a delayed record, by which it can be cancelled or moved until it is due; "" = not delayed."""
    replaced: bool | None = None
    """For a delayed record with a `schedule_id`: True = it has replaced a waiting record with that id, which will not
    be delivered; False = no record was waiting with that id; None = it has no id, or not known."""

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
    """A committed offset: of the next record to read, with a text (`metadata`) and the last read record's epoch."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str = field(default="", compare=False, repr=False)
    """The id of the topic that was read; "" = of the topic that has the name when the offset is committed.

    A topic that was deleted and created again has another id, and offsets of the old one are not committed for it."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer's group, member id and generation, for offsets that a producer commits in a transaction (KIP-447).

    `generation_id` is -1 and `member_id` empty for a consumer with manual assignment.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict, compare=False, repr=False)
    """The id of the topic that was read, by partition. If the topic was deleted and created again since, offsets are
    committed for the topic that was read, never for the new one."""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """Result of `offsets_for_times`: the first record at or after the requested time, and its timestamp (ms)."""

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
    """The offset after the last record of that epoch."""


@dataclass(frozen=True, slots=True)
class PreparedTxnState:
    """Identifies a prepared transaction (KIP-939). Store its text, `str()`, where the outcome is decided.

    Both are -1 if nothing was sent in the transaction.
    """

    producer_id: int = -1
    epoch: int = -1

    def __str__(self) -> str:
        """`producer id:epoch`, as in Kafka; empty if nothing was sent."""
        return f"{self.producer_id}:{self.epoch}" if self.producer_id >= 0 else ""

    @classmethod
    def parse(cls, text: str) -> PreparedTxnState:
        """Parse the text form. Raises ValueError."""
        if not text:
            return cls()
        producer_id, _, epoch = text.partition(":")
        if not (producer_id.isdecimal() and epoch.isdecimal()):
            raise ValueError(f"A prepared transaction is written as `producer id:epoch`, not {text!r:.100}.")
        return cls(int(producer_id), int(epoch))
