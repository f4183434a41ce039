"""Lets a bounded number of processes start or end at the same time. The brokers of a machine share the bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

LEAST: Final = 2
"""Turns that each broker has in any case. A starting process also waits for Ray: with one turn at a time, creating and
writing a topic of 6 partitions on three brokers and two cores took a quarter to a half longer."""


class Turns:
    """Turns that are taken in the order of the requests."""

    def __init__(self, total: int, sharing: Callable[[], int]) -> None:
        """``total``: turns for all brokers that share them; ``sharing`` returns how many brokers these are now."""
        self._total = total
        self._sharing = sharing
        self._taken = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it during a block."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._taken < self._limit())
            self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            async with self._changed:
                self._changed.notify_all()  # all, because the bound may have grown as well

    def _limit(self) -> int:
        return max(LEAST, self._total // max(1, self._sharing()))
