"""The time of day by which records are due: the owner's, which neither jumps nor goes back. Pure.

It is the wall clock when the leadership began, and runs on with the monotonic clock. A difference of up to a second is
made up slowly, in both directions. A greater one is a step: the clock was set, or the machine was suspended. The other
brokers' clocks decide which clock is right; until they agree with the step it is not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

STEP_MS: Final = 1_000
"""Difference from which on the wall clock counts as set."""
SLEW: Final = 20
"""The clock is made to run faster or slower by at most one part of so many."""


class OwnerClock:
    """Milliseconds since 1970 that never go back.

    Invariant: between two calls the time advances by at least ``1 - 1/SLEW`` and at most ``1 + 1/SLEW`` of what the
    monotonic clock does, unless a step was confirmed.
    """

    __slots__ = ("_ahead_ms", "_latest_ms", "_looked_ms", "step_ms")

    def __init__(self, *, monotonic_ms: int, wall_ms: int) -> None:
        """Begin with the wall clock."""
        self._ahead_ms = wall_ms - monotonic_ms
        self._looked_ms = monotonic_ms
        self._latest_ms = wall_ms
        self.step_ms = 0
        """How far the wall clock is from this one, where that is a step; 0 = it is not."""

    def now_ms(self, *, monotonic_ms: int, wall_ms: int) -> int:
        """Return the time."""
        elapsed_ms = monotonic_ms - self._looked_ms
        difference = wall_ms - monotonic_ms - self._ahead_ms
        if abs(difference) >= STEP_MS:
            self.step_ms = difference
        else:
            self.step_ms = 0
            slew = min(abs(difference), elapsed_ms // SLEW)
            if slew:
                self._ahead_ms += slew if difference > 0 else -slew
        if elapsed_ms >= SLEW or self.step_ms:
            self._looked_ms = monotonic_ms
        self._latest_ms = max(self._latest_ms, monotonic_ms + self._ahead_ms)
        return self._latest_ms

    def confirm(self, agreed_ms: int | None, *, wall_ms: int) -> bool:
        """Follow the step if the time on which most brokers agree is that of the wall clock; return whether."""
        if not self.step_ms or agreed_ms is None or abs(agreed_ms - wall_ms) >= STEP_MS:
            return False
        self._ahead_ms += self.step_ms
        self.step_ms = 0
        return True


def agreed_ms(clocks_ms: Sequence[int], brokers: int) -> int | None:
    """Return the time on which more than half of so many brokers agree, to a second; None = there is none yet.

    The latest of them is given: those before were on their way for longer.
    """
    clocks = sorted(clocks_ms)
    needed = brokers // 2 + 1
    for last in range(len(clocks) - 1, needed - 2, -1):
        if clocks[last] - clocks[last - needed + 1] < STEP_MS:
            return clocks[last]
    return None
