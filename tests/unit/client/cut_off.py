"""Tasks of a client that something else cancels before their first step: what they begin with, they never reach."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unborn(name: str) -> Iterator[list[asyncio.Task[Any]]]:
    """Within it, the first task of the running loop that runs the coroutine of this name is cancelled at once."""
    loop = asyncio.get_running_loop()
    cut: list[asyncio.Task[Any]] = []

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        if not cut and getattr(work, "__qualname__", "") == name:
            cut.append(task)
            task.cancel()
        return task

    loop.set_task_factory(make)
    try:
        yield cut
    finally:
        loop.set_task_factory(None)
