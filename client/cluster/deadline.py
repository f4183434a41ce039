"""The end of a call that sends several requests. Used by `ClusterClient`, and by methods of clients that do.

May touch: the event loop's clock.
"""

from __future__ import annotations

import asyncio

LAST_REQUEST_S = 0.1
"""What a request gets at least: one that fails in time names the reason, and a deadline alone does not."""


class Deadline:
    """Ends `timeout_s` seconds after it was made. Made on an event loop."""

    __slots__ = ("_end_s",)

    def __init__(self, timeout_s: float) -> None:
        self._end_s = now_s() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds for the next request, at least `LAST_REQUEST_S`."""
        return max(LAST_REQUEST_S, self._end_s - now_s())

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return now_s() >= self._end_s


def now_s() -> float:
    """The running loop's clock, in seconds."""
    return asyncio.get_running_loop().time()
