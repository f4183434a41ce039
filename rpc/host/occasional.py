"""A rate-limited warning for events that any peer can cause: one line in ten seconds, with the number left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

INTERVAL_S = 10.0


class OccasionalWarning:
    """Logs at most one line each `INTERVAL_S`; the next line has the number left out."""

    def __init__(self, logger: logging.Logger, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock_s = clock_s
        self._next_s = float("-inf")
        self._left_out = 0

    def warn(self, message: str, *arguments: object) -> None:
        """Log the warning, or count it."""
        now_s = self._clock_s()
        if now_s < self._next_s:
            self._left_out += 1
            return
        self._next_s = now_s + INTERVAL_S
        more, self._left_out = self._left_out, 0
        if more:
            self._logger.warning(message + " (%d more of these since the last such line.)", *arguments, more)
        else:
            self._logger.warning(message, *arguments)
