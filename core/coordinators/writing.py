"""Rows of an owner of a log, or changes of a queue, that wait to be stored: the queue between machine and log.

Rows come in step by step; batches go out, none larger than the log takes. A step's rows are stored together wherever
they fit into one batch, so that a crash leaves none or all of them. Positions count rows, so that the queue is the
``Durability`` of a runner. Used by ``actors/coordinators/runner.py`` and ``actors/queues/queue.py``. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from raylog.base.invariants import require

RowT = TypeVar("RowT")


class RowQueue(Generic[RowT]):
    """Rows in the order in which they were decided.

    Invariants: ``durable_end <= end``; a batch holds the oldest rows and stays within the requested size, unless it is
    a single row; one batch is in flight at a time.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Start empty. ``wake`` causes calls of :meth:`take` soon, until it returns an empty batch."""
        self._wake = wake
        self._rows: deque[tuple[RowT, int, int]] = deque()
        """(row, its bytes, the bytes of its whole step if it is the step's first row, else 0)."""
        self._end = 0
        self._stored = 0
        self._under_way = 0
        """Number of rows in the batch that is being appended; 0 = none is."""

    @property
    def has_queued(self) -> bool:
        """Whether rows wait that are not under way yet."""
        return bool(self._rows)

    def end(self) -> int:
        """Return how many rows were added."""
        return self._end

    def durable_end(self) -> int:
        """Return how many of the added rows are stored."""
        return self._stored

    def kick(self) -> None:
        """Request an append of the queued rows."""
        self._wake()

    def add(self, rows: Iterable[tuple[RowT, int]]) -> None:
        """Queue the rows of a step, each with its size in bytes."""
        step = list(rows)
        whole = sum(size for _, size in step)
        for row, size in step:
            self._rows.append((row, size, whole))
            whole = 0
        self._end += len(step)
        self._wake()

    def take(self, bytes_max: int) -> list[RowT]:
        """Return the next batch, empty when no row is queued; otherwise :meth:`stored` has to follow."""
        require(self._under_way == 0, "one batch is under way at a time")
        rows = self._rows
        batch: list[RowT] = []
        left = bytes_max
        while rows:
            row, size, whole = rows[0]
            is_apart = whole <= bytes_max and whole > left  # its step fits into a batch of its own, but not into this
            if batch and (is_apart or size > left):
                break
            rows.popleft()
            batch.append(row)
            left -= size
        self._under_way = len(batch)
        return batch

    def stored(self) -> None:
        """Note that the batch under way is in the log."""
        require(self._under_way > 0, "a batch was under way")
        self._stored += self._under_way
        self._under_way = 0
