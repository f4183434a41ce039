"""Which rows go into which batch, with which sequence. Pure; used by the session, inside the relay's transaction.

Rules:

- Rows of one key go in the order of their ids. So a lane that cannot take a row takes no later one in this plan.
- A lane's batches have consecutive numbers and sequences.
- A lane gets at most as many batches as it has room for.
- A row that no batch of its topic can hold is listed as refused, and later rows of its key wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from raylog.base.ids import TopicPartition
from raylog.client.producer.partitioner import hash_of_key, partition_for_key
from raylog.client.producer.resumed import BATCH_BYTES_MIN
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.outbox.model import Candidate, Full, Limits, OutboxBatch, Position, Topics, TopicView

RECORD_BYTES = 32
"""Upper bound of what a record takes in a batch besides its key, payload and headers: lengths, a timestamp, and the
txid's header without the txid."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many more batches a lane may take, and the position of the first; None only without room."""

    batches: int
    position: Position | None


NO_ROOM = Room(0, None)


@dataclass(slots=True)
class Plan:
    """New batches, and what keeps other rows from being in one."""

    batches: list[OutboxBatch] = field(default_factory=list)
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    refused: list[tuple[int, str]] = field(default_factory=list)
    """Rows that fail, with the reason."""
    targets: dict[int, str] = field(default_factory=dict)
    """By delayed row: the id of its own topic."""
    unknown_topics: set[str] = field(default_factory=set)
    doubted_topics: set[str] = field(default_factory=set)
    """Topics whose limits have to be fetched again before a row fails by them."""
    rows: int = 0
    """How many rows are in the batches."""


class Planner:
    """Makes one plan: call `take` with pages of candidates in the order of their ids, then `finish`."""

    def __init__(self, topics: Topics, room: Callable[[TopicPartition], Room], limits: Limits, turn: int = 0) -> None:
        """`turn`: a number that changes with each plan, so that each plan sends rows without a key elsewhere."""
        self._topics = topics
        self._room = room
        self._limits = limits
        self._turn = turn
        self._rooms: dict[TopicPartition, Room] = {}
        self._open: dict[TopicPartition, tuple[list[int], int]] = {}
        """Rows of the batch that is being filled, and its bytes."""
        self._closed: set[TopicPartition] = set()
        """Lanes that take no further row in this plan."""
        self._waiting_keys: set[tuple[str, bytes]] = set()
        """Topics and keys that wait behind a refused row."""
        self._sticky: dict[str, int] = {}
        self.plan = Plan()

    @property
    def is_full(self) -> bool:
        """Whether the plan has as many rows as a turn may have."""
        return self.plan.rows >= self._limits.rows

    def take(self, candidates: Sequence[Candidate]) -> None:
        """Put the next rows into batches, as far as there is room."""
        for row in candidates:
            if self.is_full:
                return
            self._take(row)

    def note_full(self, full: Full) -> None:
        """Add the topics and partitions that take no further row in this plan."""
        full.topics |= self.plan.unknown_topics
        for where, room in self._rooms.items():
            if where in self._closed or (where not in self._open and room.batches < 1):
                full.add(where, self._topics[where.topic].partitions)
        full.find_targets(self._topics)

    def finish(self) -> Plan:
        """Close the batches that are being filled."""
        for where in list(self._open):
            self._close_batch(where)
        return self.plan

    def _take(self, row: Candidate) -> None:
        topic = self._topics.get(row.topic)
        if topic is None:
            self.plan.unknown_topics.add(row.topic)
            return
        if row.key is not None and (row.topic, row.key) in self._waiting_keys:
            return
        reason = _refusal(row, topic)
        if reason is not None:
            if topic.is_confirmed:
                self.plan.refused.append((row.row_id, reason))
            else:
                self.plan.doubted_topics.add(row.topic)
            if row.key is not None:
                self._waiting_keys.add((row.topic, row.key))
            return
        where = self._lane_of(row, topic) if row.delay_ms is None else self._schedule_of(row)
        if where is None:
            return
        if not self._added(where, row, self._topics[where.topic]):
            self._closed.add(where)
        elif row.delay_ms is not None:
            self.plan.targets[row.row_id] = topic.topic_id

    def _schedule_of(self, row: Candidate) -> TopicPartition | None:
        """The lane in which a row waits until it is due; None while it takes no row. All rows of a topic share one."""
        scheduled = self._topics.get(SCHEDULED_TOPIC)
        if scheduled is None:
            self.plan.unknown_topics.add(SCHEDULED_TOPIC)
            return None
        where = TopicPartition(SCHEDULED_TOPIC, hash_of_key(row.topic.encode()) % scheduled.partitions)
        return None if where in self._closed else where

    def _lane_of(self, row: Candidate, topic: TopicView) -> TopicPartition | None:
        """The lane of a row that is due; None while no lane that may take it has room."""
        if row.key is not None:
            where = TopicPartition(row.topic, partition_for_key(row.key, topic.partitions))
            return None if where in self._closed else where
        first = self._sticky.setdefault(row.topic, self._turn % topic.partitions)
        for step in range(topic.partitions):
            where = TopicPartition(row.topic, (first + step) % topic.partitions)
            if where not in self._closed and (where in self._open or self._room_of(where).batches > 0):
                self._sticky[row.topic] = where.partition
                return where
        return None

    def _room_of(self, where: TopicPartition) -> Room:
        room = self._rooms.get(where)
        if room is None:
            room = self._rooms[where] = self._room(where)
        return room

    def _added(self, where: TopicPartition, row: Candidate, topic: TopicView) -> bool:
        """Add a row to the open batch of its lane, or to a new one; False when there is no room for one.

        `topic`: the one that the lane belongs to, which is ``__scheduled`` for a delayed row.
        """
        size = row.size + RECORD_BYTES
        most = min(self._limits.batch_bytes, topic.message_bytes - BATCH_BYTES_MIN)
        if where in self._open:
            rows, filled = self._open[where]
            if len(rows) < self._limits.batch_rows and filled + size <= most and not row.is_alone:
                rows.append(row.row_id)
                self._open[where] = rows, filled + size
                self.plan.rows += 1
                return True
            self._close_batch(where)
            if row.key is None and row.delay_ms is None:
                self._sticky[row.topic] = (where.partition + 1) % topic.partitions
        if self._room_of(where).batches < 1:
            return False
        self._open[where] = [row.row_id], size
        self.plan.rows += 1
        if row.is_alone:
            self._close_batch(where)
        return True

    def _close_batch(self, where: TopicPartition) -> None:
        rows, _ = self._open.pop(where)
        room = self._room_of(where)
        position = room.position
        assert position is not None  # a lane with room has one
        self.plan.batches.append(
            OutboxBatch(
                where,
                position.topic_id,
                position.producer_id,
                position.producer_epoch,
                position.next_batch,
                position.next_sequence,
                tuple(rows),
            )
        )
        behind = position.behind(len(rows))
        self._rooms[where] = Room(room.batches - 1, behind)
        self.plan.positions[where] = behind


def _refusal(row: Candidate, topic: TopicView) -> str | None:
    """Why a topic will never take a row; None = it may."""
    least = BATCH_BYTES_MIN + row.size
    if least > topic.message_bytes:
        return f"RecordTooLarge: {least} bytes, and max.message.bytes is {topic.message_bytes}"
    if row.delay_ms is not None and topic.delay_max_ms < 0:
        return "DelayDisabled: the topic has delay.enable=false"
    if row.delay_ms is not None and row.delay_ms > topic.delay_max_ms:
        return f"DelayTooLong: due in {row.delay_ms} ms, and delay.max.ms is {topic.delay_max_ms}"
    return None
