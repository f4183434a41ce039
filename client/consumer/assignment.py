"""A consumer's subscription, and the state of each assigned partition. Owned by `engine.py`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum

from raylog.base.errors import InvalidRequest, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.partition import OPENED_BYTES_MAX, PartitionState, Start
from raylog.client.consumer.undelivered import Undelivered
from raylog.client.interceptors import refuse_columns
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.reading.decode import ColumnPiece
from raylog.client.types import Record

COLUMNS_BYTES = 3 << 20
"""Bytes read from files for one batch of columns: few enough to stay in the processor's cache until they are used."""

Intercept = Callable[[Record], "Record | None"]
NewState = Callable[[TopicPartition, Start], PartitionState]


class Mode(Enum):
    """How a consumer gets its partitions."""

    NONE = "nothing yet"
    TOPICS = "subscribe(topics)"
    PATTERN = "subscribe(pattern=...)"
    MANUAL = "assign(partitions)"


class Assignment:
    """Subscription and assigned partitions of one consumer; records are taken from the partitions in turn."""

    def __init__(self, new_state: NewState, intercept: Intercept | None = None) -> None:
        """`intercept` returns the record that the user gets, None = leave it out; called when a record is taken."""
        self._new_state = new_state
        self._intercept = intercept
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        """The subscribed topics; with a pattern, those that match it now."""
        self.pattern: re.Pattern[str] | None = None
        self.states: dict[TopicPartition, PartitionState] = {}
        self.consumed_bytes = self.consumed_records = 0
        """What was consumed of partitions that are no longer assigned."""
        self.handing = Undelivered()
        """The positions that the last take moved, to restore them if its records do not reach the user."""
        self._order: list[PartitionState] = []
        self._turn = 0
        self._current: PartitionState | None = None
        """The partition that `take_one` is reading from."""

    # Subscription

    def subscribe(self, topics: Iterable[str], pattern: re.Pattern[str] | None = None) -> None:
        """Replace the subscription. Raises InvalidRequest after assign().

        With a pattern `topics` keeps its value until the matching ones are known.
        """
        self._set_mode(Mode.TOPICS if pattern is None else Mode.PATTERN)
        if pattern is None:
            self.topics = frozenset(topics)
        self.pattern = pattern

    def is_subscribed(self, topics: Iterable[str], pattern: re.Pattern[str] | None) -> bool:
        """Whether this is already the subscription."""
        if pattern is not None:
            return self.mode is Mode.PATTERN and self.pattern == pattern
        return self.mode is Mode.TOPICS and self.topics == frozenset(topics)

    def assign(self, partitions: Iterable[TopicPartition], start: Start) -> None:
        """Read exactly these partitions. Raises InvalidRequest after subscribe()."""
        self._set_mode(Mode.MANUAL)
        self.set_partitions(partitions, start)

    def clear(self) -> None:
        """Drop subscription and partitions; then subscribe() and assign() are both possible."""
        self.mode = Mode.NONE
        self.topics = frozenset()
        self.pattern = None
        self.set_partitions((), Start.POLICY)

    def _set_mode(self, mode: Mode) -> None:
        automatic = (Mode.TOPICS, Mode.PATTERN)
        if self.mode is not Mode.NONE and (self.mode in automatic) != (mode in automatic):
            raise InvalidRequest(
                f"This consumer uses {self.mode.value}; call unsubscribe() before {mode.value}, the two do not mix."
            )
        self.mode = mode

    def set_partitions(self, partitions: Iterable[TopicPartition], start: Start) -> None:
        """Replace the assigned partitions. Those that stay keep position and buffer; new ones begin at `start`."""
        partitions = list(partitions)
        kept = self.states
        wanted = {TopicPartition(*each) for each in partitions}
        for partition, state in kept.items():
            if partition not in wanted:
                self.consumed_bytes += state.consumed_bytes
                self.consumed_records += state.consumed_records
        self.states = {each: kept.get(each) or self._new_state(each, start) for each in partitions}
        self._order = list(self.states.values())
        self._turn = 0
        self._current = None

    def state(self, partition: TopicPartition) -> PartitionState:
        """The partition's state. Raises InvalidRequest when it is not assigned."""
        found = self.states.get(TopicPartition(*partition))
        if found is None:
            raise InvalidRequest(
                f"Partition {partition[0]}-{partition[1]} is not assigned to this consumer; assignment() shows those "
                "that are. After subscribe() they come with a poll()."
            )
        return found

    # Taking

    @property
    def buffered_bytes(self) -> int:
        """Bytes fetched ahead over all partitions."""
        return sum(state.memory_bytes for state in self._order)

    def take(self, limit: int, only: Iterable[TopicPartition] = ()) -> dict[TopicPartition, list[Record]]:
        """At most `limit` next records, from the partitions in turn (from `only`, if any are named).

        An error is raised only when there are no records to return before it.
        """
        taken: dict[TopicPartition, list[Record]] = {}
        wanted = frozenset(only)
        order = self._order
        count = len(order)
        room = OPENED_BYTES_MAX
        self.handing.begin()
        for step in range(count):
            state = order[(self._turn + step) % count]
            if (wanted and state.partition not in wanted) or not state.has_records:
                continue
            self.handing.note(state)
            room += state.opened_bytes
            try:
                records = state.take(limit) if self._intercept is None else _intercepted(state, limit, self._intercept)
            except RaylogError:
                if taken:
                    break  # return the good records first; the next call meets the error again
                self._turn = (self._turn + step + 1) % count
                raise
            room -= state.opened_bytes
            if records:
                taken[state.partition] = records
                limit -= len(records)
                if limit <= 0 or room <= 0:
                    # Stay at a partition with an open file chunk until all its records are taken: its memory is reused
                    # sooner.
                    self._turn = (self._turn + step + (0 if state.is_in_hand else 1)) % count
                    break
        return taken

    def has_records(self, only: Iterable[TopicPartition] = ()) -> bool:
        """Whether `take` has something to return or to raise."""
        wanted = frozenset(only)
        return any(state.has_records for state in self._order if not wanted or state.partition in wanted)

    def take_one(self) -> Record | None:
        """The next record, or None. A partition stays the current one until its open batch is used up."""
        if self._intercept is not None:
            return next((record for records in self.take(1).values() for record in records), None)
        current, handing = self._current, self.handing
        handing.begin()
        if current is not None:
            record = None
            if current.has_opened:
                handing.note(current)
                record = current.take_one()
            if record is not None:
                return record
        order = self._order
        count = len(order)
        for step in range(count):
            state = order[(self._turn + step) % count]
            if state.has_records:
                self._turn = (self._turn + step + 1) % count
                handing.note(state)
                record = state.take_one()
                if record is not None:
                    self._current = state
                    return record
        return None

    def take_columns(self, limit: int) -> ColumnBatch:
        """At most `limit` next records as columns, from the partitions in turn; raises as `take`.

        Files of a leader on this machine are read only in part, since they may hold more than should be in memory.
        """
        if self._intercept is not None:
            raise refuse_columns("Reading columns", "poll()")
        pieces: list[ColumnPiece] = []
        order = self._order
        count = len(order)
        room, grown = COLUMNS_BYTES, 0
        self.handing.begin()
        for step in range(count):
            state = order[(self._turn + step) % count]
            if not state.has_records:
                continue
            self.handing.note(state)
            while limit > 0 and grown <= OPENED_BYTES_MAX:
                piece = state.take_columns(limit, fail=not pieces, may_read=room > 0)
                if piece is None:
                    break
                pieces.append(piece)
                limit -= piece.rows
                grown += 0 if piece.opened is None else piece.opened.plain_bytes
                if piece.batch.is_near:
                    room -= piece.batch.header.size
            if limit <= 0 or room <= 0 or grown > OPENED_BYTES_MAX:
                self._turn = (self._turn + step + 1) % count
                break
        return ColumnBatch(pieces)


def _intercepted(state: PartitionState, limit: int, intercept: Intercept) -> list[Record]:
    """As `PartitionState.take`, with an interceptor: the position moves past a record once the interceptor returned."""
    given: list[Record] = []
    while len(given) < limit:
        try:
            record = state.peek()
            returned = None if record is None else intercept(record)
        except RaylogError:
            if given:
                break  # the next call meets the error again
            raise
        if record is None:
            break
        state.take_one()
        if returned is not None:
            given.append(returned)
    return given
