"""A thread for the blocking calls of a database: one at a time, each with a deadline. May touch: threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

CALL_TIMEOUT_S: Final = 60.0
"""A call that takes longer is abandoned. It may still end later; the fence keeps it from doing harm."""


class DatabaseThread:
    """Runs calls in one thread, in order. An abandoned call keeps its thread; later calls get another one."""

    def __init__(self) -> None:
        self._executor = _one_thread()

    async def run(
        self, function: Callable[Parameters, Result], /, *args: Parameters.args, **options: Parameters.kwargs
    ) -> Result:
        """Run a call and wait for it. Raises what it raises, and TimeoutError after `CALL_TIMEOUT_S`."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, partial(function, *args, **options))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await asyncio.shield(work)
        except (TimeoutError, asyncio.CancelledError):
            work.add_done_callback(_forget)
            self._executor.shutdown(wait=False)
            self._executor = _one_thread()
            raise

    def close(self) -> None:
        """Let the thread end."""
        self._executor.shutdown(wait=False)


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "raylog-outbox")


def _forget(work: asyncio.Future[Result]) -> None:
    """Read the outcome of an abandoned call, so that asyncio does not log its error as never retrieved."""
    if not work.cancelled():
        work.exception()
