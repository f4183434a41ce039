"""When a coordinator proposes to end, so that it has no process while it is not used.

Owned by the machine. A coordinator that has nothing under way knows no more than its log. So it ends when no request
has come for ``replica.sleep.after.ms`` of its topic, and the next request starts another one (ADR 0044). From the
proposal on it decides nothing, so that no request is lost with its process; it serves again if the proposal is refused.
Pure.
"""

from __future__ import annotations

from typing import Final

REFUSED_PAUSE_MS: Final = 10_000
"""Pause before a coordinator whose proposal was refused repeats it."""


class Idleness:
    """How long a coordinator was not used, and whether its proposal is under way."""

    __slots__ = ("_active_ms", "_is_closed", "_is_requested", "_sleep_after_ms")

    def __init__(self, sleep_after_ms: int) -> None:
        """``sleep_after_ms``: how long no request has to come before it ends; -1 = it never ends by itself."""
        self._sleep_after_ms = sleep_after_ms
        self._active_ms = 0
        self._is_requested = False
        self._is_closed = False

    def reconfigure(self, sleep_after_ms: int) -> None:
        """Use another ``sleep_after_ms`` from now on."""
        self._sleep_after_ms = sleep_after_ms

    @property
    def is_closed(self) -> bool:
        """Whether a proposal is under way."""
        return self._is_closed

    def used(self, now_ms: int) -> None:
        """Note a use: a coordinator that begins to serve counts as used."""
        self._active_ms = now_ms
        self._is_requested = False

    def request_sleep(self) -> None:
        """Wait no longer, because the cluster is about to stop; no effect if ``sleep_after_ms`` is -1."""
        self._is_requested = True

    def is_due(self, now_ms: int) -> bool:
        """Return whether it was unused for long enough, and no proposal is under way."""
        if self._sleep_after_ms < 0 or self._is_closed:
            return False
        return self._is_requested or now_ms - self._active_ms >= self._sleep_after_ms

    def due_ms(self) -> int | None:
        """Return when it has been unused for long enough; None = never by itself, or a proposal is under way."""
        if self._sleep_after_ms < 0 or self._is_closed:
            return None
        return self._active_ms + (0 if self._is_requested else self._sleep_after_ms)

    def propose(self) -> None:
        """Note that the proposal is under way."""
        self._is_closed = True

    def refused(self, now_ms: int) -> None:
        """Serve again: the proposal was refused, and may be repeated after ``REFUSED_PAUSE_MS``."""
        self._is_closed = self._is_requested = False
        # Chosen so that `is_due` is true again after the pause.
        self._active_ms = now_ms + min(REFUSED_PAUSE_MS, self._sleep_after_ms) - self._sleep_after_ms
