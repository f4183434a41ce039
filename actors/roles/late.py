"""Decides when to log that a target is late: when a transient error has lasted for some time, and then each minute.

Pure. Each role that sends records to other topics has an instance of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

LATE_MS: Final = 10_000
"""Time until the first warning; a target that moves or restarts is back before."""
WARN_MS: Final = 60_000
"""Interval of warnings about one target."""


class LateWarnings:
    """The targets that are late. A target is forgotten when it has taken a record."""

    def __init__(self) -> None:
        """No target is late."""
        self._next_ms: dict[Hashable, int] = {}

    def is_due(self, target: Hashable, since_ms: int, now_ms: int) -> bool:
        """Return whether to log an error that occurs now; ``since_ms``: when the first record was due, or failed."""
        next_ms = self._next_ms.setdefault(target, since_ms + LATE_MS)
        if now_ms < next_ms:
            return False
        self._next_ms[target] = now_ms + WARN_MS
        return True

    def over(self, target: Hashable) -> None:
        """Note that the target has taken a record, or has refused it permanently."""
        self._next_ms.pop(target, None)
