"""The time of day for retention and expiration, and for the timestamps that they compare with. Owned by shells.

Retention of records, expiration of producer ids and of group offsets use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from raylog.actors.clock import since_boot_ns, wall_ns
from raylog.core.clock_guard import ClockGuard

logger = logging.getLogger(__name__)


class CarefulClock:
    """Reads the wall clock and the clock since boot, lets the guard compare them, and logs a jump of the wall clock."""

    def __init__(
        self, name: str, *, since_boot: Callable[[], int] = since_boot_ns, wall: Callable[[], int] = wall_ns
    ) -> None:
        """``name`` begins each log line; both clocks return nanoseconds."""
        self._name = name
        self._since_boot_ns = since_boot
        self._wall_ns = wall
        self._guard = ClockGuard(since_boot_ms=since_boot() // 1_000_000, wall_ms=wall() // 1_000_000)
        self.jump_ms = 0
        """How far the wall clock had jumped at the last check; 0 = it is trusted."""

    def appending_ms(self) -> int:
        """Return the time of day to append with, in milliseconds since 1970.

        It is never behind :meth:`deleting_ms`: while the wall clock is set back, time continues as before the jump.
        Otherwise records that come meanwhile would already be old when the clock is right again.
        """
        wall_ms = self._wall_ns() // 1_000_000
        trusted_ms = self._since_boot_ns() // 1_000_000 + self._guard.ahead_ms
        return wall_ms if wall_ms > trusted_ms else trusted_ms  # on the path of every batch: faster than `max`

    def trusted_ms(self) -> int:
        """Return the time of day as it goes on from before a jump of the wall clock; without one it is that clock's."""
        self.deleting_ms()
        return self._since_boot_ns() // 1_000_000 + self._guard.ahead_ms

    def deleting_ms(self) -> int:
        """Return the time of day to delete by, in milliseconds since 1970."""
        found = self._guard.judge(
            since_boot_ms=self._since_boot_ns() // 1_000_000, wall_ms=self._wall_ns() // 1_000_000
        )
        if found.report:
            logger.error(
                "%s: the wall clock jumped by %+.0f s. Nothing is deleted that is not due by the clock before the jump "
                "as well. Set the clock right; if it is right, it is believed after 24 hours or a restart.",
                self._name,
                found.jump_ms / 1000,
            )
        elif self.jump_ms and not found.jump_ms:
            logger.warning("%s: the wall clock is believed again.", self._name)
        self.jump_ms = found.jump_ms
        return found.deleting_ms
