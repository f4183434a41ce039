"""Order per key: the unfinished records of each key, in order; a key is at one member at a time. Pure.

A key queue holds the offsets of one key that were scanned and are not finished. It is ready when none of them is locked
and the first one is available: then its first records may go, together, to one member. A heap has the ready ones by
their first offsets; an entry that is no longer true is dropped when it comes up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from heapq import heappop, heappush

Key = int
"""A hash of a record's key: keys with equal hashes share a queue, which costs them no more than speed."""


class KeyQueue:
    """The unfinished offsets of a key, ascending, and how many of them are locked."""

    __slots__ = ("held", "offsets")

    def __init__(self) -> None:
        self.offsets: deque[int] = deque()
        self.held = 0


class KeyQueues:
    """All key queues of one queue.

    Invariants: each scanned and unfinished offset is in exactly one key queue; a ready one is in the heap under its
    first offset.
    """

    def __init__(self, start: int, is_available: Callable[[int], bool]) -> None:
        """Begin with nothing scanned. ``is_available`` looks an offset up in the queue."""
        self.scanned_end = start
        self._is_available = is_available
        self._queues: dict[Key, KeyQueue] = {}
        self._key_of: dict[int, Key] = {}
        self._ready: list[tuple[int, Key]] = []

    def __len__(self) -> int:
        """Return the number of keys with unfinished records."""
        return len(self._queues)

    @property
    def offsets(self) -> Collection[int]:
        """The offsets that were scanned and are not finished."""
        return self._key_of.keys()

    def add(self, offset: int, key: Key | None) -> None:
        """Add a scanned record, in the order of offsets; a record without a key gets a queue of its own."""
        self.scanned_end = offset + 1
        queue_key = -1 - offset if key is None else key
        queue = self._queues.get(queue_key)
        if queue is None:
            queue = self._queues[queue_key] = KeyQueue()
        queue.offsets.append(offset)
        self._key_of[offset] = queue_key
        if len(queue.offsets) == 1:
            self._offer(queue_key, queue)

    def first_ready(self) -> int | None:
        """Return the lowest scanned offset that may be handed out; None = there is none."""
        while self._ready:
            offset, key = self._ready[0]
            if self._is_ready(offset, key):
                return offset
            heappop(self._ready)
        return None

    def take(self, start: int, end: int, limit: int, reach: int) -> list[tuple[int, int]]:
        """Lock the next records below ``end``, key by key, at most ``limit``; return each as (offset, offset + 1).

        Nothing is taken if a record below ``start`` is ready: the leader has read from ``start`` on, and that record is
        next. A key gives records less than ``reach`` behind its first one: members get whole batches, and records
        farther apart would bring along many records of other members.
        """
        found: list[tuple[int, int]] = []
        while len(found) < limit and (first := self.first_ready()) is not None and start <= first < end:
            _, key = heappop(self._ready)
            queue = self._queues[key]
            stop = min(end, first + reach)
            for offset in queue.offsets:
                if offset >= stop or len(found) >= limit or not self._is_available(offset):
                    break
                found.append((offset, offset + 1))
                queue.held += 1
        found.sort()
        return found

    def freed(self, offset: int) -> None:
        """Note that a record is not locked any more, and not finished: it is available again, or waits."""
        key = self._key_of.get(offset)
        if key is not None:
            queue = self._queues[key]
            queue.held -= 1
            self._offer(key, queue)

    def available_again(self, offset: int) -> None:
        """Note that a record has waited long enough."""
        key = self._key_of.get(offset)
        if key is not None:
            self._offer(key, self._queues[key])

    def finished(self, offset: int, *, was_held: bool) -> None:
        """Drop a record that is not handed out any more."""
        key = self._key_of.pop(offset, None)
        if key is None:
            return
        queue = self._queues[key]
        if was_held:
            queue.held -= 1
        if queue.offsets[0] == offset:
            queue.offsets.popleft()
        else:
            queue.offsets.remove(offset)
        if queue.offsets:
            self._offer(key, queue)
        else:
            del self._queues[key]

    def hottest(self) -> int:
        """Return how many unfinished records the longest key queue has."""
        return max((len(queue.offsets) for queue in self._queues.values()), default=0)

    def validate(self, is_locked: Callable[[int], bool]) -> None:
        """Raise ValueError unless the invariants hold; ``is_locked`` looks an offset up in the queue."""
        ready = set(self._ready)
        for key, queue in self._queues.items():
            offsets = list(queue.offsets)
            if offsets != sorted(set(offsets)) or any(self._key_of[offset] != key for offset in offsets):
                raise ValueError(f"the queue of {key} is broken: {offsets}")
            if queue.held != sum(is_locked(offset) for offset in offsets):
                raise ValueError(f"the queue of {key} counts {queue.held} locks: {offsets}")
            if not queue.held and self._is_available(offsets[0]) and (offsets[0], key) not in ready:
                raise ValueError(f"the queue of {key} is ready and would not be found")
        if sum(len(queue.offsets) for queue in self._queues.values()) != len(self._key_of):
            raise ValueError("an offset is in no key queue, or in two")

    def _is_ready(self, offset: int, key: Key) -> bool:
        queue = self._queues.get(key)
        if queue is None or queue.held or queue.offsets[0] != offset:
            return False
        return self._is_available(offset)

    def _offer(self, key: Key, queue: KeyQueue) -> None:
        if not queue.held and self._is_available(queue.offsets[0]):
            heappush(self._ready, (queue.offsets[0], key))
