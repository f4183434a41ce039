"""Measures how late records are delivered, over the last thousand batches. Owned by the scheduler's role. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT: Final = 1_000


class Lateness:
    """Milliseconds between the due time of a batch's first record and its acknowledgement by the target."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=KEPT)
        self.latest_ms = 0
        self.records = 0
        """Number of delivered records."""

    def observe(self, late_ms: int, records: int) -> None:
        """Note the delivery of a batch."""
        self.latest_ms = max(0, late_ms)
        self.records += records
        self._recent.append(self.latest_ms)

    def p99_ms(self) -> int:
        """Return the 99th percentile of the lateness, in milliseconds; 0 before the first batch."""
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] if ordered else 0
