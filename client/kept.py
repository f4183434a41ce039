"""A cache of idle clients and connections, which are kept open for a while for their next use.

Spark plans queries and runs tasks in the same processes again and again, and connecting would take most of the time of
a plan or a small task. Everything here belongs to one event loop. Used by ranges/planning.py (the client of a plan)
and reading/range_fetcher.py (the connections of a task). May touch: the network, the event loop's clock.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

KEPT_S = 60.0
"""An item that was idle for so long is closed."""


class _Idle(NamedTuple, Generic[Item]):
    item: Item
    ending: asyncio.Task[None]


class Kept(Generic[Item]):
    """Idle items, at most one for each purpose."""

    def __init__(self, close: Callable[[Item], Awaitable[None]], *, at_most: int) -> None:
        """`close` closes an item. If there are more than `at_most` items, the one that was kept first is closed."""
        self._close = close
        self._at_most = at_most
        self._idle: dict[Hashable, _Idle[Item]] = {}
        _all.add(self)

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, purpose: Hashable) -> Item | None:
        """Remove and return the item that was kept for this purpose; None = there is none."""
        found = self._idle.pop(purpose, None)
        if found is None:
            return None
        found.ending.cancel()
        return found.item

    async def keep(self, purpose: Hashable, item: Item) -> None:
        """Keep this item. Closes an older one with the same purpose, and one above the limit."""
        closed = [self.take(purpose)]
        self._idle[purpose] = _Idle(item, asyncio.ensure_future(self._end(purpose)))
        if len(self._idle) > self._at_most:
            closed.append(self.take(next(iter(self._idle))))
        for old in closed:
            if old is not None:
                await self._close(old)

    async def close(self) -> None:
        """Close all kept items."""
        for purpose in list(self._idle):
            if (item := self.take(purpose)) is not None:
                await self._close(item)

    def forget(self) -> None:
        """In a forked child: drop the items without closing them, since the connections are the parent's."""
        self._idle = {}

    async def _end(self, purpose: Hashable) -> None:
        try:
            await asyncio.sleep(KEPT_S)
        finally:
            # Also when the loop ends and cancels this task. If `take` cancels it, the item was removed before.
            found = self._idle.get(purpose)
            if found is not None and found.ending is asyncio.current_task():
                del self._idle[purpose]
                await self._close(found.item)


_all: weakref.WeakSet[Kept[Any]] = weakref.WeakSet()


def _forget_all() -> None:
    for kept in _all:
        kept.forget()


os.register_at_fork(after_in_child=_forget_all)
