"""When open transactions are past their timeout. Owned by the machine. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


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
