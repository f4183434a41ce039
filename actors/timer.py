"""Ticks a replica's machine as rarely as its deadlines allow, because a cluster has many idle replicas.

Owned by the replica's shell. Waking an idle process costs more than the work that it then does. May touch: the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raylog.actors.clock import monotonic_ms

SHORTEST_MS: Final = 50
"""Interval between two ticks while something is due."""
LONGEST_MS: Final = 500
"""Longest interval between two ticks of an idle replica."""


class TickTimer:
    """Calls ``tick`` at the time that its last call returned; `hasten` moves that time forward."""

    def __init__(self, tick: Callable[[int], int], longest_ms: int | None = None) -> None:
        """``tick`` gets the latest time of the next tick, and returns the time at which it wants the next one, both in
        monotonic milliseconds. ``longest_ms``: longest interval between two ticks; None = LONGEST_MS, its maximum.
        """
        self._tick = tick
        self._longest_ms = LONGEST_MS if longest_ms is None else longest_ms
        self._due_ms = 0
        self._hastened = asyncio.Event()

    def hasten(self, in_ms: int = SHORTEST_MS) -> None:
        """Tick in ``in_ms`` at the latest, for work that the last tick did not know of."""
        if in_ms < LONGEST_MS:
            due_ms = monotonic_ms() + in_ms
            if due_ms < self._due_ms:
                self._due_ms = due_ms
                self._hastened.set()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            now_ms = monotonic_ms()
            latest_ms = now_ms + self._longest_ms
            wanted_ms = self._tick(latest_ms)
            self._due_ms = min(latest_ms, max(now_ms + SHORTEST_MS, wanted_ms))
            while (left_ms := self._due_ms - monotonic_ms()) > 0:
                await self._wait(left_ms / 1000)

    async def _wait(self, left_s: float) -> None:
        if left_s * 1000 <= SHORTEST_MS:
            await asyncio.sleep(left_s)
            return
        self._hastened.clear()
        try:
            async with asyncio.timeout(left_s):
                await self._hastened.wait()
        except TimeoutError:
            pass
