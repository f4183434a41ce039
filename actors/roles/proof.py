"""Proof that a leader was not deposed when a request came: a row that stands for nothing, stored after it (R12).

For roles that answer out of memory without a coordinator's runner. A row serves all that waited when its append began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Proof:
    """The rows of one role, one at a time."""

    def __init__(self, store: Callable[[], Awaitable[None]]) -> None:
        """``store`` appends the row; it returns when that is committed, and raises where it is not."""
        self._store = store
        self._storing = asyncio.Lock()
        self._begun = 0
        """How many appends have begun."""
        self._trouble: BaseException | None = None
        """The error of the last one; None = it was stored."""

    async def stored(self) -> None:
        """Return when a row was stored that was appended after the call. Raises what its append has raised."""
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
        except BaseException as trouble:  # also where the role ends amid it
            self._trouble = trouble
            raise
        self._trouble = None
