"""The producer ids that a coordinator has at hand. Owned by the machine. Pure.

They come from the controller, a block at a time, and none twice. A coordinator that ends loses those it has not used.
"""

from __future__ import annotations

from raylog.base.invariants import require


class ProducerIds:
    """Unused producer ids, and whether more were requested.

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
