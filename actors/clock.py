"""The clocks that shells hand to machines: a monotonic one for deadlines, wall time for records."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

monotonic_ns = time.monotonic_ns
"""Nanoseconds of a clock that never goes back."""

_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The first exists on Linux only."""
since_boot_ns: Callable[[], int] = partial(time.clock_gettime_ns, _SINCE_BOOT)
"""Nanoseconds of a clock that cannot be set, and that goes on while the machine is suspended."""
wall_ns = time.time_ns
"""Nanoseconds since the epoch; for record timestamps and retention. As the two above, it is read for each batch."""


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back; for deadlines and session times."""
    return time.monotonic_ns() // 1_000_000


def since_boot_ms() -> int:
    """Return milliseconds of a clock that cannot be set, and that goes on while the machine is suspended."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since the epoch; for record timestamps and retention."""
    return time.time_ns() // 1_000_000
