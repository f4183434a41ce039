"""What a coordinator waits for: the markers of decided transactions, the timeouts of open ones, and producer ids.

And the requests that wait for markers or producer ids. Owned by the machine. Pure.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from raylog.base.invariants import require
from raylog.core.decision import RequestId
from raylog.core.received import Received
from raylog.core.transactions.records import ProducerIdentity, TxnChanged
from raylog.protocol.transactions import TxnPartition

Participant: TypeAlias = TxnPartition | str
"""A partition, or a group by its name."""


class Ending:
    """The participants without their marker, by transactional id."""

    def __init__(self) -> None:
        """Start empty."""
        self._left: dict[str, tuple[ProducerIdentity, set[Participant]]] = {}

    def __len__(self) -> int:
        """Return how many transactions are being ended."""
        return len(self._left)

    def __contains__(self, name: str) -> bool:
        """Return whether the transaction of an id is being ended."""
        return name in self._left

    def begin(self, decided: TxnChanged) -> None:
        """Note the participants of a decided transaction."""
        self._left[decided.transactional_id] = decided.writer, {*decided.partitions, *decided.groups}

    def written(self, name: str, writer: ProducerIdentity, participant: Participant) -> bool:
        """Note a marker; return whether it was the last one. Those of other transactions, and repetitions, are not."""
        held = self._left.get(name)
        if held is None or held[0] != writer or participant not in held[1]:
            return False
        held[1].discard(participant)
        if held[1]:
            return False
        del self._left[name]
        return True


class Timeouts:
    """Deadlines by transactional id, at most one for each."""

    def __init__(self) -> None:
        """Start empty."""
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        """Every deadline that was set and is not past; an entry that is no longer in ``_due`` is skipped."""

    def __len__(self) -> int:
        """Return how many transactions have a deadline."""
        return len(self._due)

    def __contains__(self, name: str) -> bool:
        """Return whether a transaction has a deadline."""
        return name in self._due

    def set(self, name: str, due_ms: int) -> None:
        """Set the deadline of a transaction."""
        if self._due.get(name) != due_ms:
            self._due[name] = due_ms
            heapq.heappush(self._heap, (due_ms, name))

    def clear(self, name: str) -> None:
        """Forget the deadline of a transaction."""
        self._due.pop(name, None)

    def next_ms(self) -> int | None:
        """Return the first deadline; None = there is none."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def past(self, now_ms: int) -> Iterator[str]:
        """Yield the transactions past their deadlines; each has to be cleared, or it is yielded again."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, name = self._heap[0]
            if self._due.get(name) == due_ms:
                yield name
                if self._due.get(name) == due_ms:
                    return
            heapq.heappop(self._heap)


class ProducerIds:
    """Unused producer ids, and whether more were requested. A coordinator that ends loses those it has not used.

    They come from the controller, a block at a time, and none twice.
    Invariant: one request is under way at a time, and none while there are ids.
    """

    def __init__(self, retry_ms: int) -> None:
        """Start without any. ``retry_ms``: the pause after a request that failed."""
        self._retry_ms = retry_ms
        self._next = self._end = 0
        self._is_requested = False
        self._due_ms = 0

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return self._next == self._end

    def take(self) -> int:
        """Return an unused id."""
        require(not self.is_empty, "a producer id is taken while there are some")
        taken = self._next
        self._next += 1
        return taken

    def due_ms(self) -> int | None:
        """Return from when on :meth:`request` may be repeated; None = ids are there, or on their way."""
        return None if self._is_requested or not self.is_empty else self._due_ms

    def request(self, now_ms: int) -> bool:
        """Note that ids are needed; returns whether they are to be requested now."""
        if not self.is_empty or self._is_requested or now_ms < self._due_ms:
            return False
        self._is_requested = True
        return True

    def granted(self, first: int, count: int, now_ms: int) -> None:
        """Take ``count`` ids from ``first`` on; 0 = the request failed, and is repeated after a pause."""
        self._is_requested = False
        if count:
            self._next, self._end = first, first + count
        else:
            self._due_ms = now_ms + self._retry_ms


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
