"""Proof that a leader was not yet deposed when a request came: an empty row, committed after the request (R12).

For roles that answer from memory without a coordinator's runner. One row serves all requests that wait when its append
begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Proof:
    """Appends the empty rows of one role, one at a time."""

    def __init__(self, store: Callable[[], Awaitable[None]]) -> None:
        """``store`` appends the row; it returns when that is committed, and raises if it is not."""
        self._store = store
        self._storing = asyncio.Lock()
        self._begun = 0
        """Number of appends that have begun."""
        self._trouble: BaseException | None = None
        """The error of the last append; None = it was committed."""

    async def stored(self) -> None:
        """Return when a row is committed whose append began after this call. Raises the error of that append."""
        wanted = self._begun + 1
        async with self._storing:
            if self._begun < wanted:
                self._begun += 1
                await self._append()
            elif self._trouble is not None:
                raise self._trouble

    async def _append(self) -> None:
        try:
            await self._store()
        except BaseException as trouble:  # also a cancellation, when the role ends
            self._trouble = trouble
            raise
        self._trouble = None
