"""Reports the progress of long waits, such as for many partitions or processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

QUIET_S: Final = 1.0
"""A wait that takes no longer than this is not reported."""
EVERY_S: Final = 1.0
"""The least time between two reports."""

Say = Callable[[str], None]
"""Takes one sentence without a full stop, such as "812 of 1,000 partitions asleep"."""


class Progress:
    """Reports a line at most every `EVERY_S`, from `QUIET_S` after the start on, and only if it has changed."""

    def __init__(self, say: Say | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``say`` gets each line; None = nothing is reported. ``clock`` returns seconds."""
        self._say = say
        self._clock = clock
        self._due_s = clock() + QUIET_S
        self._last = ""

    def at(self, done: int, total: int, what: str) -> None:
        """Report "``done`` of ``total`` ``what``", if there are any."""
        if total:
            self.line(f"{done:,} of {total:,} {what}")

    def line(self, text: str) -> None:
        """Report a line, if one is due and it has changed."""
        now_s = self._clock()
        if self._say is None or text == self._last or now_s < self._due_s:
            return
        self._due_s, self._last = now_s + EVERY_S, text
        self._say(text)
