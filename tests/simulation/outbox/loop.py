"""An event loop on virtual time: it never waits, and everything in it happens in an order that the seed decides."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Selector(selectors.SelectSelector):
    """Lets the time pass instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing ever comes in from outside."""
        if timeout is None:
            raise RuntimeError("everything waits for something that nothing will do")
        self.loop.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now_s


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end; what is still there then is dropped."""
    loop = VirtualLoop()
    loop.set_exception_handler(lambda *_: None)  # tasks of killed processes never end
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
