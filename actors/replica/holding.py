"""Keeps retention from what a leader role still has to copy elsewhere: the records of dead letters and late retries.

A record is copied from the log when its topic takes it, which may be long after it was rejected. Until then retention
leaves its segment, and all behind it; deleting records on request does not. Bounded in time and bytes, so that a
copy that never succeeds fills no disk. Owned by the replica's runner. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HELD_MS_MAX: Final = 86_400_000
"""For so long one offset is held."""
HELD_BYTES_MAX: Final = 1 << 30
"""A log of this size is held no more."""


@dataclass(slots=True)
class Hold:
    """What is held now. A role that makes progress needs a higher offset, for which the time begins again."""

    offset: int = -1
    """The lowest offset that a role needs; -1 = none."""
    given_up: bool = False
    """Whether it is needed and not held any more: it was for too long, or the log is too large."""
    _since_ms: int = 0

    def limit(self, needed: int | None, *, log_start: int, watermark: int, size_bytes: int, now_ms: int) -> int:
        """Return the offset below which retention may remove segments. ``now_ms`` is monotonic.

        ``needed``: the lowest offset that a role still has to copy; None = it needs none.
        """
        if needed is None or needed < log_start:  # what was deleted on request cannot be copied any more
            self.offset, self.given_up = -1, False
            return watermark
        if needed != self.offset:
            self.offset, self._since_ms = needed, now_ms
        self.given_up = now_ms - self._since_ms >= HELD_MS_MAX or size_bytes >= HELD_BYTES_MAX
        return watermark if self.given_up else min(watermark, needed)
