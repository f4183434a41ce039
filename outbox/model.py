"""The values that the relay's decisions are made of: rows, batches, and where a lane goes on. Pure.

A lane is what one relay sends into one partition: its batches have consecutive numbers and, within a producer epoch,
consecutive sequences. Both are written into the rows before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from raylog.client.producer.partitioner import hash_of_key
from raylog.client.scheduling import DELAY_MAX_MS
from raylog.core.ids import TopicPartition
from raylog.core.invariants import require
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC

PRODUCER_EPOCH_MAX: Final = 2**15 - 1
SEQUENCE_LIMIT: Final = 2**30
"""A lane whose next sequence is behind this takes another producer epoch once all of its batches are marked, so that
sequences never wrap around."""
BATCHES_UNMARKED_MAX: Final = 5
"""Of one lane: leaders recognise the last five batches of a producer."""


class Candidate(NamedTuple):
    """A committed row that is in no batch. ``size``: bytes of key, payload and headers."""

    row_id: int
    topic: str
    key: bytes | None
    size: int
    delay_ms: int | None = None
    """How long from now until it is due, by the database's clock: it waits in ``__scheduled``. None = it is due."""
    is_alone: bool = False
    """It was in a batch that was refused, so it goes in one of its own: then the refusal is certainly about it."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """What is known of a topic. ``message_bytes``: the largest batch that it takes."""

    topic_id: str
    partitions: int
    message_bytes: int
    delay_max_ms: int = DELAY_MAX_MS
    """Longest delay of a record; -1 = records of it cannot be delayed."""
    is_confirmed: bool = False
    """It was fetched for this turn: only then a row fails by these limits, which may have been raised since."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a lane goes on: the number and the first sequence of its next batch, and its producer there."""

    topic_id: str
    producer_id: int
    producer_epoch: int
    next_batch: int
    next_sequence: int

    def renewed(self, topic_id: str, producer_id: int, *, epoch_above: int = -1) -> Position:
        """The position in the next producer epoch, or with another producer id in its first one.

        Leaders refuse what is still on its way under the old epoch, as soon as they have a batch of the new one.
        ``epoch_above``: the highest epoch that a leader has seen.
        """
        epoch = 0
        if producer_id == self.producer_id:
            epoch = max(self.producer_epoch, epoch_above) + 1
            require(epoch <= PRODUCER_EPOCH_MAX, "a lane without a further epoch has another producer id")
        return replace(self, topic_id=topic_id, producer_id=producer_id, producer_epoch=epoch, next_sequence=0)

    def behind(self, records: int) -> Position:
        """The position behind one more batch."""
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
    """Of one turn of a relay, and of the batches that it makes."""

    rows: int = 2_000
    """Most rows that one turn puts into batches."""
    batch_rows: int = 500
    batch_bytes: int = 262_144
    """Of a batch of several rows, before compression."""
    scanned_rows: int = 20_000
    """Most rows that one turn looks at, when those before belong to lanes that are full or stand still."""


@dataclass(slots=True)
class Full:
    """What can take no row now, so that its rows need not be read."""

    topics: set[str] = field(default_factory=set)
    partitions: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    """By topic how many there are, and which of them are full: rows with a key for these wait."""
    targets: set[str] = field(default_factory=set)
    """Topics whose delayed rows wait, because they would go through a full partition of ``__scheduled``."""

    def add(self, where: TopicPartition, count: int) -> None:
        """Note a partition of a topic with so many."""
        self.partitions.setdefault(where.topic, (count, set()))[1].add(where.partition)
        if len(self.partitions[where.topic][1]) >= count:
            self.topics.add(where.topic)

    def find_targets(self, topics: Iterable[str]) -> None:
        """Note which of these topics have a full partition for their delayed rows."""
        count, full = self.partitions.get(SCHEDULED_TOPIC, (1, set()))
        self.targets |= {name for name in topics if hash_of_key(name.encode()) % count in full}


@dataclass(slots=True)
class Changes:
    """What the next transaction of the relay writes about batches that were sent."""

    finished: list[tuple[OutboxBatch, int]] = field(default_factory=list)
    """Acknowledged batches, with the offset of the first record; -1 = not known any more."""
    dissolved: list[tuple[OutboxBatch, bool]] = field(default_factory=list)
    """Batches that are certainly not stored: their rows are free again. True: each goes in a batch of its own."""
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Rows that the topic will never take, with the reason."""
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    """Lanes that go on elsewhere than behind their last batch."""

    def __bool__(self) -> bool:
        return bool(self.finished or self.dissolved or self.failed or self.positions)


Topics = Mapping[str, TopicView]
