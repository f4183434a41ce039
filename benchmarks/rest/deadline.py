"""The time of one measure. May touch: the clock."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.peers.processes import Unavailable

LAST_CALL_S: Final = 0.1
"""What a call gets at least: one that fails in time names the reason."""


class Deadline:
    """Ends `seconds` after it was made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began_s = time.monotonic()

    @property
    def passed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        """Seconds for the next call."""
        return max(LAST_CALL_S, self.seconds - self.passed_s)

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self.passed_s >= self.seconds

    def check(self, what: str) -> None:
        """Raise Unavailable, with what has not happened, when the time is used up."""
        if self.is_over:
            raise Unavailable(f"{what} within {self.seconds:.0f} s")
