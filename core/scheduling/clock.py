"""The time of day by which records are due: the owner's, which neither jumps nor goes back. Pure.

It starts with the wall clock when the leadership begins, and runs on with the monotonic clock. If the wall clock
deviates by less than a second, the difference is made up slowly, in both directions. A greater difference is a step:
the wall clock was set, or the machine was suspended. A step is followed only once most brokers' clocks agree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

STEP_MS: Final = 1_000
"""A difference of at least so much is a step."""
SLEW: Final = 20
"""To make up a difference, the clock runs faster or slower by at most ``1/SLEW``."""


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
        """How far the wall clock is ahead of this one (negative: behind), if that is a step; 0 = it is none."""

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
        """Follow a step if most brokers agree with the wall clock; return whether it was followed.

        ``agreed_ms`` is the time on which they agree (:func:`agreed_ms`), None = they do not.
        """
        if not self.step_ms or agreed_ms is None or abs(agreed_ms - wall_ms) >= STEP_MS:
            return False
        self._ahead_ms += self.step_ms
        self.step_ms = 0
        return True


def agreed_ms(clocks_ms: Sequence[int], brokers: int) -> int | None:
    """Return the time on which more than half of ``brokers`` agree, to a second; None = there is no such time yet.

    Of the clocks that agree, the latest counts: the earlier ones were on their way for longer.
    """
    clocks = sorted(clocks_ms)
    needed = brokers // 2 + 1
    for last in range(len(clocks) - 1, needed - 2, -1):
        if clocks[last] - clocks[last - needed + 1] < STEP_MS:
            return clocks[last]
    return None
