"""The values that the relay decides with: rows, batches, and where a lane continues. Pure.

A lane is what one relay sends into one partition: its batches have consecutive numbers and, within a producer epoch,
consecutive sequences. Both are written into the rows before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from raylog.base.ids import TopicPartition
from raylog.base.invariants import require
from raylog.client.producer.partitioner import hash_of_key
from raylog.client.scheduling import DELAY_MAX_MS
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC

PRODUCER_EPOCH_MAX: Final = 2**15 - 1
SEQUENCE_LIMIT: Final = 2**30
"""A lane whose next sequence is above this takes another producer epoch once all of its batches are marked, so that
sequences never wrap around."""


class Candidate(NamedTuple):
    """A committed row that is in no batch. ``size``: bytes of key, payload and headers."""

    row_id: int
    topic: str
    key: bytes | None
    size: int
    delay_ms: int | None = None
    """Time until it is due, by the database's clock; until then it waits in ``__scheduled``. None = it is due."""
    is_alone: bool = False
    """It was in a refused batch, so it goes in a batch of its own: a further refusal is certainly about this row."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """What is known of a topic. ``message_bytes``: the largest batch that it accepts (max.message.bytes)."""

    topic_id: str
    partitions: int
    message_bytes: int
    delay_max_ms: int = DELAY_MAX_MS
    """Longest delay of a record; -1 = records of it cannot be delayed."""
    is_confirmed: bool = False
    """The limits were fetched for this turn. A row fails only by such limits: older ones may have been raised since."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a lane continues: the number and the first sequence of its next batch, and the producer that sends it."""

    topic_id: str
    producer_id: int
    producer_epoch: int
    next_batch: int
    next_sequence: int

    def renewed(self, topic_id: str, producer_id: int, *, epoch_above: int = -1) -> Position:
        """This position in the next producer epoch; with another producer id, in epoch 0.

        As soon as a leader has a batch of the new epoch, it refuses what is still on its way under the old one.
        ``epoch_above``: the highest epoch that a leader has seen.
        """
        epoch = 0
        if producer_id == self.producer_id:
            epoch = max(self.producer_epoch, epoch_above) + 1
            require(epoch <= PRODUCER_EPOCH_MAX, "a lane without a further epoch has another producer id")
        return replace(self, topic_id=topic_id, producer_id=producer_id, producer_epoch=epoch, next_sequence=0)

    def behind(self, records: int) -> Position:
        """The position after one more batch of so many records."""
        return replace(self, next_batch=self.next_batch + 1, next_sequence=self.next_sequence + records)


@dataclass(frozen=True, slots=True)
class OutboxBatch:
    """One batch as it is written in its rows: the same rows with the same sequences, however often it is sent."""

    where: TopicPartition
    topic_id: str
    producer_id: int
    producer_epoch: int
    number: int
    first_sequence: int
    rows: tuple[int, ...]
    """Ids of the rows; the row at index i has sequence ``first_sequence + i``."""

    @property
    def next_sequence(self) -> int:
        """The sequence behind its last record."""
        return self.first_sequence + len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one turn of a relay, and of the batches that it makes."""

    rows: int = 2_000
    """Most rows that one turn puts into batches."""
    batch_rows: int = 500
    batch_bytes: int = 262_144
    """Largest batch of several rows, before compression; a single row may be larger."""
    scanned_rows: int = 20_000
    """Most rows that one turn reads: rows of full or waiting lanes may stand before those that can be sent."""


@dataclass(slots=True)
class Full:
    """What can take no row now, so that its rows need not be read."""

    topics: set[str] = field(default_factory=set)
    partitions: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    """By topic: its number of partitions, and which of them are full. Rows whose key belongs to a full one wait."""
    targets: set[str] = field(default_factory=set)
    """Topics whose delayed rows wait, because they would go through a full partition of ``__scheduled``."""

    def add(self, where: TopicPartition, count: int) -> None:
        """Note a full partition; `count`: the number of partitions of its topic."""
        self.partitions.setdefault(where.topic, (count, set()))[1].add(where.partition)
        if len(self.partitions[where.topic][1]) >= count:
            self.topics.add(where.topic)

    def find_targets(self, topics: Iterable[str]) -> None:
        """Note which of these topics would put their delayed rows into a full partition of ``__scheduled``."""
        count, full = self.partitions.get(SCHEDULED_TOPIC, (1, set()))
        self.targets |= {name for name in topics if hash_of_key(name.encode()) % count in full}


@dataclass(slots=True)
class Changes:
    """What the next transaction of the relay writes about batches that were sent."""

    finished: list[tuple[OutboxBatch, int]] = field(default_factory=list)
    """Acknowledged batches, with the offset of the first record; -1 = the leader no longer knows it."""
    dissolved: list[tuple[OutboxBatch, bool]] = field(default_factory=list)
    """Batches that are certainly not stored: their rows are free again. True: the batch was refused, so each row goes
    in a batch of its own."""
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Rows that the topic will never take, with the reason."""
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    """New positions of lanes."""

    def __bool__(self) -> bool:
        return bool(self.finished or self.dissolved or self.failed or self.positions)


Topics = Mapping[str, TopicView]
