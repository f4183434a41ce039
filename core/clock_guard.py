"""The time of day that deletion may use: a clock that jumped is trusted again only after a day without another jump.

Retention, the expiry of producer ids and the expiry of group offsets compare the time of day with a timestamp. A wall
clock that is set eight days ahead for a moment makes everything old at once, and what is deleted stays deleted. A
second clock shows the jump: one that counts the time since boot, which no administrator and no NTP daemon sets. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JUMP_MS: Final = 60_000
"""A change of more than this in the clocks' difference, from one reading to the next, is a jump. Deleting this much
early is harmless, and an NTP step at boot or a paused virtual machine stays below it."""
DRIFT_PER_MILLE: Final = 1
"""Drift allowed between the clocks, per elapsed time. NTP slews by at most half of it."""
BELIEVED_AFTER_MS: Final = 24 * 3_600_000
"""A clock that has jumped and then keeps going for this long is right: an operator had a day to object."""
REPORT_MS: Final = 3_600_000
"""Pause between two reports of the same jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Result of comparing both clocks once."""

    deleting_ms: int
    """Time of day to delete by. It is never later than the wall clock. After a jump it is also never later than the
    clock from before the jump, carried on by the time since boot."""
    jump_ms: int
    """How far the wall clock is from where it should be; 0 while it is trusted."""
    going_ms: int
    """Time of day to compare deadlines with: the wall clock or, after a jump in either direction, the clock from before
    the jump, carried on by the time since boot."""
    report: bool
    """Whether the jump is to be reported now: at first, then once an hour."""


class ClockGuard:
    """Compares the wall clock with the time since boot. All times are milliseconds.

    Invariants: ``deleting_ms <= wall_ms`` at each reading; while ``jump_ms != 0``, ``deleting_ms`` advances no faster
    than the time since boot.
    """

    __slots__ = ("_judged_ms", "_reported_ms", "_suspect_ahead", "_suspect_since_ms", "ahead_ms")

    def __init__(self, *, since_boot_ms: int, wall_ms: int) -> None:
        """Trust the wall clock at the start: there is no earlier reading to compare it with."""
        self.ahead_ms = wall_ms - since_boot_ms
        """Time of day minus time since boot, at the last reading of the wall clock that was trusted."""
        self._judged_ms = since_boot_ms
        """When the wall clock last agreed with the time since boot."""
        self._suspect_ahead: int | None = None
        """Wall clock minus time since boot after the jump; None while the wall clock is trusted."""
        self._suspect_since_ms = 0
        """Time since boot of the first reading with ``_suspect_ahead``."""
        self._reported_ms = 0

    def judge(self, *, since_boot_ms: int, wall_ms: int) -> ClockReading:
        """Return the time to delete by. The time since boot must not go back."""
        ahead = wall_ms - since_boot_ms
        if self._agree(ahead, self.ahead_ms, since_boot_ms - self._judged_ms):
            return self._believe(ahead, since_boot_ms, wall_ms)
        first = self._suspect_ahead is None
        if self._suspect_ahead is None or not self._agree(
            ahead, self._suspect_ahead, since_boot_ms - self._suspect_since_ms
        ):
            self._suspect_ahead, self._suspect_since_ms = ahead, since_boot_ms
        elif since_boot_ms - self._suspect_since_ms >= BELIEVED_AFTER_MS:
            return self._believe(ahead, since_boot_ms, wall_ms)
        report = first or since_boot_ms - self._reported_ms >= REPORT_MS
        if report:
            self._reported_ms = since_boot_ms
        should_be = since_boot_ms + self.ahead_ms
        return ClockReading(
            deleting_ms=min(wall_ms, should_be), jump_ms=wall_ms - should_be, going_ms=should_be, report=report
        )

    def _believe(self, ahead: int, since_boot_ms: int, wall_ms: int) -> ClockReading:
        self.ahead_ms, self._judged_ms, self._suspect_ahead = ahead, since_boot_ms, None
        return ClockReading(deleting_ms=wall_ms, jump_ms=0, going_ms=wall_ms, report=False)

    @staticmethod
    def _agree(ahead: int, expected: int, elapsed_ms: int) -> bool:
        return abs(ahead - expected) <= JUMP_MS + elapsed_ms * DRIFT_PER_MILLE // 1000
