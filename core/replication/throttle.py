"""Fetch throttle of a replica that is being added. Pure; used by the follower's half of the replica machine.

Every fetch answer costs time in proportion to its size, and the next fetch waits until that time is over. Over any span
of time the rate is exceeded by at most one answer.
"""

from __future__ import annotations

MIN_FETCH_BYTES = 64 * 1024
"""A slow rate makes fetches rare rather than tiny."""


class Throttle:
    """One replica's throttle; it outlives leader epochs."""

    __slots__ = ("_free_at_ms",)

    def __init__(self) -> None:
        """Start without a wait."""
        self._free_at_ms = 0

    def spend(self, size_bytes: int, rate: int, now_ms: int) -> None:
        """Note received bytes; ``rate`` is in bytes per second."""
        self._free_at_ms = max(self._free_at_ms, now_ms) - (-size_bytes * 1000 // rate)

    def forget(self) -> None:
        """Clear the wait: the rate has changed, and bytes received under the old one no longer count."""
        self._free_at_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """Return how long the next fetch has to wait."""
        return max(0, self._free_at_ms - now_ms)

    @staticmethod
    def fetch_bytes(rate: int) -> int:
        """Return the size limit of one fetch: about what the rate allows within a second."""
        return max(MIN_FETCH_BYTES, rate)
