"""Restart backoff of a process after a failure. Pure.

One failure costs no pause: leadership has moved, and the replica should be back soon. A disk that is broken fails again
at once, and each restart reads logs, takes CPU from healthy replicas and writes lines to the log; so the pause doubles
with each further failure. A module of its own, because it is a pure rule, and its caller reads files and the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 30_000
"""Short enough that a replica is back soon after its disk is."""
CALM_MS: Final = 600_000
"""A failure longer ago than this does not count towards the next pause. More than the longest pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """Failures of one actor in a row, and when the last was, in milliseconds since boot."""

    failures: int = 0
    failed_ms: int = 0


def after_failure(history: RestartHistory, now_ms: int) -> RestartHistory:
    """Return the history with one more failure."""
    in_a_row = history.failures if _is_recent(history, now_ms) else 0
    return RestartHistory(failures=in_a_row + 1, failed_ms=now_ms)


def pause_ms(history: RestartHistory, now_ms: int) -> int:
    """Return how long to wait before starting: 0, 1, 2, 4 ... 30 seconds after 1, 2, 3, 4 ... failures in a row."""
    if history.failures < 2 or not _is_recent(history, now_ms):
        return 0
    doublings = min(history.failures - 2, 16)
    return min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << doublings)


def _is_recent(history: RestartHistory, now_ms: int) -> bool:
    return 0 <= now_ms - history.failed_ms < CALM_MS  # below 0: of an earlier boot
