"""Holds requests that come while a coordinator reads its log. Owned by its shell.

A coordinator starts within a fraction of a second. So its clients get the answer instead of a refusal, after which they
would pause. If it takes longer, they are refused, as Kafka's coordinators do, and try again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from raylog.core.errors import CoordinatorLoadInProgress
from raylog.rpc import Request

HOLD_MS: Final = 2_000
"""How long a request waits; less than the heartbeat timeout of any client."""
HELD_MAX: Final = 10_000
"""Most requests that wait; more are refused at once."""


class EarlyRequests:
    """Requests in the order of arrival, each refused with CoordinatorLoadInProgress after HOLD_MS."""

    def __init__(self) -> None:
        """Start empty."""
        self._held: deque[tuple[int, Request]] = deque()

    def hold(self, request: Request, now_ms: int) -> None:
        """Keep a request, or refuse it if HELD_MAX requests wait."""
        if len(self._held) >= HELD_MAX:
            request.fail(CoordinatorLoadInProgress())
        else:
            self._held.append((now_ms + HOLD_MS, request))

    def expire(self, now_ms: int) -> None:
        """Refuse the requests that have waited for HOLD_MS."""
        while self._held and self._held[0][0] <= now_ms:
            self._held.popleft()[1].fail(CoordinatorLoadInProgress())

    def hand_over(self, receive: Callable[[Request], None]) -> None:
        """Pass on all held requests; those whose connection has closed are dropped."""
        held, self._held = self._held, deque()
        for _, request in held:
            if not request.is_deserted:
                receive(request)
