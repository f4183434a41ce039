"""When it is logged that something waits: once an error that may pass has lasted, and then each minute.

Used by the roles that send records on, one for each of them. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

LATE_MS: Final = 10_000
"""A target that moves or restarts is back before."""
WARN_MS: Final = 60_000
"""Between two lines about one target."""


class LateWarnings:
    """What waits, by target. One that has taken something is forgotten, so there are as many as stand still."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._next_ms: dict[Hashable, int] = {}

    def is_due(self, target: Hashable, since_ms: int, now_ms: int) -> bool:
        """Return whether to log an error of now. ``since_ms``: when the first of it was due, or failed."""
        next_ms = self._next_ms.setdefault(target, since_ms + LATE_MS)
        if now_ms < next_ms:
            return False
        self._next_ms[target] = now_ms + WARN_MS
        return True

    def over(self, target: Hashable) -> None:
        """Note that the target has taken something, or has refused it for good."""
        self._next_ms.pop(target, None)
