"""Says how far something long has come. Used where many partitions or processes are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

QUIET_S: Final = 1.0
"""What takes no longer is not reported."""
EVERY_S: Final = 1.0

Say = Callable[[str], None]
"""Takes one sentence without a full stop, such as "812 of 1,000 partitions asleep"."""


class Progress:
    """Passes a line on about once a second, beginning a second after the start, and only when it has changed."""

    def __init__(self, say: Say | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``say`` None = nothing is reported. ``clock`` returns seconds."""
        self._say = say
        self._clock = clock
        self._due_s = clock() + QUIET_S
        self._last = ""

    def at(self, done: int, total: int, what: str) -> None:
        """State that ``done`` of ``total`` are what ``what`` says; without any there is nothing to say."""
        if total:
            self.line(f"{done:,} of {total:,} {what}")

    def line(self, text: str) -> None:
        """State how far it is, in one line."""
        now_s = self._clock()
        if self._say is None or text == self._last or now_s < self._due_s:
            return
        self._due_s, self._last = now_s + EVERY_S, text
        self._say(text)
