"""Requests that wait: for the previous transaction to end, or for producer ids. Owned by the machine. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any, Generic, TypeVar

from raylog.base.invariants import require
from raylog.core.decision import RequestId
from raylog.core.received import Received

EventT = TypeVar("EventT", bound=Received[Any])


class Waiting(Generic[EventT]):
    """Requests by what they wait for, in order of arrival, each with a deadline.

    Invariant: a request waits once.
    """

    def __init__(self, wait_ms: int) -> None:
        """Start empty. ``wait_ms``: how long each of them waits."""
        self._wait_ms = wait_ms
        self._behind: dict[str, deque[EventT]] = {}
        self._key_of: dict[RequestId, str] = {}
        self._due: list[tuple[int, RequestId]] = []
        """A heap of deadlines; requests that no longer wait are skipped."""

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._key_of)

    def add(self, key: str, event: EventT) -> None:
        """Keep a request until :meth:`take` of its key; its deadline counts from its arrival."""
        require(event.request not in self._key_of, "a request waits once")
        self._behind.setdefault(key, deque()).append(event)
        self._key_of[event.request] = key
        heapq.heappush(self._due, (event.now_ms + self._wait_ms, event.request))

    def take(self, key: str) -> list[EventT]:
        """Return the requests that waited under a key, in order, and forget them."""
        taken = list(self._behind.pop(key, ()))
        for event in taken:
            del self._key_of[event.request]
        return taken

    def drop(self, request: RequestId) -> EventT | None:
        """Forget a request, and return it if it waited."""
        key = self._key_of.pop(request, None)
        if key is None:
            return None
        queue = self._behind[key]
        found = next(event for event in queue if event.request == request)
        queue.remove(found)
        if not queue:
            del self._behind[key]
        return found

    def expired(self, now_ms: int) -> list[EventT]:
        """Return the requests that have waited for too long, and forget them."""
        found: list[EventT] = []
        while self._due and self._due[0][0] <= now_ms:
            event = self.drop(heapq.heappop(self._due)[1])
            if event is not None:
                found.append(event)
        return found

    def next_ms(self) -> int | None:
        """Return a time up to which no request has waited for too long; None = none waits."""
        return self._due[0][0] if self._key_of else None

    def is_awaited(self, key: str) -> bool:
        """Return whether a request waits under a key."""
        return key in self._behind
