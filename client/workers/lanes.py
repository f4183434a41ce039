"""Lanes: decide which records are handled one after another, and which at the same time.

A lane is a queue that one worker at a time works on. A key stays in one lane while any of its records is unfinished, so
its records are handled in order, one at a time. A new key gets a lane without work, if there is one. There are more
lanes than workers, so that a slow key delays few others, and far fewer lanes than records, so that a worker takes
several records at once. Owned by `pool.py`, under its lock. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, Self

from raylog.base.ids import TopicPartition
from raylog.client.types import Record
from raylog.client.workers.ledger import Chunk

LANES_PER_WORKER = 8
LANES_MIN = 64


class Order(Enum):
    """Which records are handled in the order of their offsets."""

    KEY = "key"
    """Records with the same key. Records without a key have no order."""
    PARTITION = "partition"
    """Records of the same partition, which at most one worker handles at a time."""
    NONE = "none"
    """No records."""


class HandlerLane:
    """A queue of chunks, which are handled one after another."""

    __slots__ = ("chunks", "is_idle", "is_ready", "keys")

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.is_ready = False
        """Whether a worker has it or will take it; if so, `chunks` is not empty."""
        self.is_idle = True
        """Whether it is in `Lanes._idle`."""
        self.keys: list[Any] = []
        """The keys that are in this lane."""


class Lanes:
    """The lanes of one pool."""

    def __init__(self, workers: int, order: Order) -> None:
        count = max(LANES_MIN, LANES_PER_WORKER * workers)
        self._order = order
        self._lanes = [HandlerLane() for _ in range(count)]
        self._idle = deque(self._lanes)
        self._turn = 0
        self._lane_of: dict[Any, HandlerLane] = {}

    def place(self, partition: TopicPartition, records: Sequence[Record]) -> tuple[list[Chunk], list[HandlerLane]]:
        """Queue the records of a partition, in the order of their offsets.

        Returns the chunks that they make, and the lanes that had no work before: each has to be given to a worker.
        """
        parts = self._parts(partition, records)
        chunks: list[Chunk] = []
        ready: list[HandlerLane] = []
        for lane, part in parts.items():
            chunk = Chunk(partition, part)
            chunks.append(chunk)
            lane.chunks.append(chunk)
            if not lane.is_ready:
                lane.is_ready = True
                ready.append(lane)
        return chunks, ready

    def chunk_ended(self, lane: HandlerLane) -> bool:
        """Remove the first chunk of a lane, which a worker has ended; return whether the lane has another one."""
        lane.chunks.popleft()
        if lane.chunks:
            return True
        lane.is_ready = False
        for key in lane.keys:
            del self._lane_of[key]
        lane.keys.clear()
        if not lane.is_idle:
            lane.is_idle = True
            self._idle.append(lane)
        return False

    def _parts(self, partition: TopicPartition, records: Sequence[Record]) -> dict[HandlerLane, list[Record]]:
        if self._order is Order.PARTITION:
            return {self._lane_of_key(_Whole(partition)): list(records)}
        parts: dict[HandlerLane, list[Record]] = {}
        is_ordered, known = self._order is Order.KEY, self._lane_of
        for record in records:
            key = record.key
            if key is None or not is_ordered:
                lane = self._next()
            else:
                try:
                    found = known.get(key)
                    lane = self._lane_of_key(key, partition) if found is None else found
                except TypeError:  # an unhashable deserialized key: all such keys of a partition share an order
                    lane = self._lane_of_key(_Whole(partition))
            part = parts.get(lane)
            if part is None:
                parts[lane] = [record]
            else:
                part.append(record)
        return parts

    def _lane_of_key(self, key: Any, partition: TopicPartition | None = None) -> HandlerLane:
        """The lane of a key; chosen now for a new key."""
        if partition is not None and key != key:  # NaN is not equal to itself, and would never be found again
            key = _Whole(partition)
        lane = self._lane_of.get(key)
        if lane is None:
            lane = self._lane_of[key] = self._without_work() or self._next()
            lane.keys.append(key)
        return lane

    def _without_work(self) -> HandlerLane | None:
        while self._idle:
            lane = self._idle.popleft()
            lane.is_idle = False
            if not lane.is_ready and not lane.keys:
                return lane
        return None

    def _next(self) -> HandlerLane:
        self._turn = turn = (self._turn + 1) % len(self._lanes)
        return self._lanes[turn]


class _Whole(tuple[str, int]):
    """A partition that is used as a key; it is not equal to any user's key."""

    __slots__ = ()

    def __new__(cls, partition: TopicPartition) -> Self:
        return super().__new__(cls, partition)

    def __eq__(self, other: object) -> bool:
        return type(other) is _Whole and tuple.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((_Whole, tuple.__hash__(self)))
