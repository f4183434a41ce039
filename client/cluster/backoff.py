"""Maps any exception to a public error, and computes the backoffs between retries.

Used by everything in this package that calls a server. Pure.
"""

from __future__ import annotations

import random

from raylog.base.errors import RaylogError, RequestTimedOut, UnknownServerError


def as_raylog_error(error: BaseException) -> RaylogError:
    """The public error for the exception of a task or a callback; a RaylogError is returned unchanged."""
    if isinstance(error, RaylogError):
        return error
    if isinstance(error, TimeoutError):
        return RequestTimedOut(str(error))
    return UnknownServerError(f"{type(error).__name__}: {error}")


class Backoff:
    """Exponential backoff: pauses double from `first_ms` to `longest_ms`, each shortened by up to a fifth (jitter)."""

    __slots__ = ("_first_ms", "_longest_ms", "_random", "failures")

    def __init__(self, first_ms: int, longest_ms: int, chance: random.Random | None = None) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._random = chance or random.Random()  # spreads load, no security purpose
        self.failures = 0

    def next_s(self) -> float:
        """Count one more failure; return how many seconds to wait now."""
        pause_ms: int = min(self._longest_ms, self._first_ms << min(self.failures, 20))
        self.failures += 1
        return pause_ms / 1000 * (1 - self._random.random() / 5)

    def reset(self) -> None:
        """After a success: begin with the first pause again."""
        self.failures = 0
