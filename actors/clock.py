"""The clocks that shells hand to machines: a monotonic one for deadlines, wall time for records."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back; for deadlines and session times."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since the epoch; for record timestamps and retention."""
    return time.time_ns() // 1_000_000
