"""The deadline of a call that sends several requests. Used by `ClusterClient` and by the clients' methods.

May touch: the event loop's clock.
"""

from __future__ import annotations

import asyncio

LAST_REQUEST_S = 0.1
"""The least time for a request, even after the deadline: a request that fails names the reason, a deadline does not."""


class Deadline:
    """A deadline `timeout_s` seconds after its creation. Needs a running event loop."""

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
