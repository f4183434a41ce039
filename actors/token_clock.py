"""The clock by which tokens expire: one for each process, shared by all its endpoints.

A wall clock that is set back must not revive an expired token, and one that is set ahead for a moment must not expire
the tokens of all jobs. So tokens expire by the clock of ADR 0027: it ignores a jump in either direction for 24 hours,
so that an operator has time to set the wall clock right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from raylog.actors.clock import monotonic_ms, since_boot_ms, wall_ms
from raylog.core.clock_guard import JUMP_MS, ClockGuard

logger = logging.getLogger(__name__)

LOOK_MS: Final = 100
"""How long a reading is reused: tokens expire by the second, and every request with a token reads this clock."""


class TokenClock:
    """Reads the wall clock and the clock since boot, and logs a jump of the wall clock."""

    def __init__(
        self,
        *,
        since_boot: Callable[[], int] = since_boot_ms,
        wall: Callable[[], int] = wall_ms,
        monotonic: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Trust the wall clock as it is now."""
        self._since_boot, self._wall, self._monotonic = since_boot, wall, monotonic
        self._guard = ClockGuard(since_boot_ms=since_boot(), wall_ms=wall())
        self._read_ms = -LOOK_MS
        self._now_ms = 0

    def now_s(self) -> float:
        """Return the time of day by which tokens expire, in seconds since 1970.

        It stands still while the wall clock is set back by less than a jump (JUMP_MS).
        """
        now_ms = self._monotonic()
        if now_ms - self._read_ms >= LOOK_MS:
            self._read_ms = now_ms
            self._look()
        return self._now_ms / 1000

    def _look(self) -> None:
        found = self._guard.judge(since_boot_ms=self._since_boot(), wall_ms=self._wall())
        if found.report:
            logger.error(
                "The wall clock jumped by %+.0f s. Tokens end by the clock before the jump. Set the clock right; if it "
                "is right, it is believed after 24 hours or a restart.",
                found.jump_ms / 1000,
            )
        if not 0 < self._now_ms - found.going_ms <= JUMP_MS:
            self._now_ms = found.going_ms


@lru_cache(maxsize=1)
def token_clock() -> TokenClock:
    """Return the token clock of this process."""
    return TokenClock()
