"""Queries for the newest metadata, each shared by all callers that wait. Owned by a broker's supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from raylog.core.metadata.image import MetadataImage


class NewestImage:
    """Queries the controller once for all callers that came before that query began."""

    def __init__(self, query: Callable[[], Awaitable[MetadataImage]]) -> None:
        """``query`` returns metadata as new as the controller's at its call, or newer."""
        self._query = query
        self._lock = asyncio.Lock()
        self._begun = 0
        self._answered = 0
        """Number of the last query that was answered."""
        self._image: MetadataImage | None = None

    async def get(self) -> MetadataImage:
        """Return metadata that is as new as the controller's at this call, or newer; raises what the query raises."""
        wanted = self._begun + 1
        async with self._lock:
            if self._answered < wanted or self._image is None:
                self._begun = number = self._begun + 1
                self._image = await self._query()
                self._answered = number
            return self._image
