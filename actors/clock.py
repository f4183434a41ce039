"""The clocks that shells read for machines: a monotonic one for deadlines, wall time for records."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

monotonic_ns = time.monotonic_ns
"""Nanoseconds of a clock that never goes back."""

_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_BOOTTIME, which exists on Linux only, counts while the machine is suspended."""
since_boot_ns: Callable[[], int] = partial(time.clock_gettime_ns, _SINCE_BOOT)
"""Nanoseconds of a clock that cannot be set, and that goes on while the machine is suspended."""
wall_ns = time.time_ns
"""Nanoseconds since 1970; for record timestamps and retention. Like the two above, it is read for each batch."""


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back; for deadlines and session times."""
    return time.monotonic_ns() // 1_000_000


def since_boot_ms() -> int:
    """Return milliseconds of a clock that cannot be set, and that goes on while the machine is suspended."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since 1970; for record timestamps and retention."""
    return time.time_ns() // 1_000_000
