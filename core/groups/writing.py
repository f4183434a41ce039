"""What waits to be appended to ``__consumer_offsets``, and what waits for that: the queue between machine and log.

Steps come in with their rows and the effects that wait for them; batches go out, none larger than the log takes;
effects come back, in order, when the last row of their step is stored. Used by the coordinator's shell and simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from raylog.core.invariants import require

RowT = TypeVar("RowT")
EffectT = TypeVar("EffectT")


class WriteQueue(Generic[RowT, EffectT]):
    """Rows and effects of steps, in order of the steps.

    Invariants: a batch is at most ``batch_bytes_max`` long unless it is a single row; one batch is under way at a time;
    an effect leaves exactly once, behind the effects of earlier steps, and when every row of its step is stored.
    """

    def __init__(self, batch_bytes_max: int) -> None:
        """Start empty. ``batch_bytes_max`` may be changed at any time; it counts for the next batch."""
        self.batch_bytes_max = batch_bytes_max
        self._steps: deque[tuple[deque[tuple[RowT, int]], list[EffectT]]] = deque()
        self._under_way: list[EffectT] | None = None
        """The effects whose last rows are in the batch that is being appended; None = no batch is."""

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits and nothing is under way."""
        return not self._steps and self._under_way is None

    @property
    def is_under_way(self) -> bool:
        """Return whether a batch was taken and is not stored yet."""
        return self._under_way is not None

    def add(self, rows: Iterable[tuple[RowT, int]], effects: Sequence[EffectT]) -> list[EffectT]:
        """Queue a step: rows with their sizes in bytes, and effects. Return the effects if they wait for nothing."""
        step = deque(rows)
        if not step and self.is_idle:
            return list(effects)
        if step or effects:
            self._steps.append((step, list(effects)))
        return []

    def take(self) -> list[RowT]:
        """Return the next batch, empty when only effects are next; :meth:`stored` has to follow before the next one."""
        require(self._under_way is None, "one batch is under way at a time")
        done: list[EffectT] = []
        batch: list[RowT] = []
        left = self.batch_bytes_max
        while self._steps:
            rows, effects = self._steps[0]
            while rows and (not batch or rows[0][1] <= left):
                row, size = rows.popleft()
                batch.append(row)
                left -= size
            if rows:
                break
            done += effects
            self._steps.popleft()
        self._under_way = done
        return batch

    def stored(self) -> list[EffectT]:
        """Note that the batch under way is in the log; return the effects that waited for it."""
        done, self._under_way = self._under_way, None
        require(done is not None, "a batch was under way")
        return done or []

    def clear(self) -> None:
        """Forget everything: the log does not take it any more."""
        self._steps.clear()
        self._under_way = None
