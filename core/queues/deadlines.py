"""Deadlines of record locks: a FIFO per duration, because locks of one duration end in the order they began. Pure.

Nothing is searched or removed when a lock ends early. What is due is looked up in the queue: only records that still
have that deadline there are released.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Due(NamedTuple):
    """The locks of [first, end) taken at one moment."""

    until_ms: int
    first: int
    end: int


class Deadlines:
    """Deadlines by their durations. Time may not go back between calls of :meth:`add`."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[int, deque[Due]] = {}

    def add(self, now_ms: int, duration_ms: int, first: int, end: int) -> int:
        """Note locks that begin now; returns when they run out."""
        until_ms = now_ms + duration_ms
        self._queues.setdefault(duration_ms, deque()).append(Due(until_ms, first, end))
        return until_ms

    def next_ms(self) -> int | None:
        """Return the earliest deadline, which may be that of a lock that has ended; None = there is none."""
        return min((queue[0].until_ms for queue in self._queues.values()), default=None)

    def take(self, now_ms: int) -> list[Due]:
        """Remove and return what is due, earliest deadline first."""
        found: list[Due] = []
        for duration_ms in [duration for duration, queue in self._queues.items() if queue[0].until_ms <= now_ms]:
            queue = self._queues[duration_ms]
            while queue and queue[0].until_ms <= now_ms:
                found.append(queue.popleft())
            if not queue:
                del self._queues[duration_ms]
        return sorted(found)
