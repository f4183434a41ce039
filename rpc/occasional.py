"""Rate-limited lines for events that any peer can cause: one in ten seconds, with the number left out."""

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
        self._log(logging.WARNING, message, arguments)

    def error(self, message: str, *arguments: object) -> None:
        """Log the error that is being handled, with its traceback, or count it."""
        self._log(logging.ERROR, message, arguments, exc_info=True)

    def _log(self, level: int, message: str, arguments: tuple[object, ...], *, exc_info: bool = False) -> None:
        now_s = self._clock_s()
        if now_s < self._next_s:
            self._left_out += 1
            return
        self._next_s = now_s + INTERVAL_S
        more, self._left_out = self._left_out, 0
        if more:
            message, arguments = message + " (%d more of these since the last such line.)", (*arguments, more)
        self._logger.log(level, message, *arguments, exc_info=exc_info)


class OccasionalDefects:
    """Logs unexpected errors with their traceback, each kind as rarely as an `OccasionalWarning`."""

    MAX_KINDS = 100

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[tuple[str, str], OccasionalWarning] = {}

    def report(self, error: BaseException, message: str, *arguments: object) -> None:
        """Log the error that is being handled, or count it; its kind is its class, and the message."""
        kind = (type(error).__qualname__, message)
        line = self._kinds.get(kind)
        if line is None:
            if len(self._kinds) >= self.MAX_KINDS:
                self._kinds.clear()
            line = self._kinds[kind] = OccasionalWarning(self._logger)
        line.error(message, *arguments)
