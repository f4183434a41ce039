"""Tasks on a client's loop that survive a cancellation from outside, and waiting for tasks that callers share.

A framework may cancel all tasks of a loop. Then tasks that live as long as the client are started again; and a caller
that waits for a shared task gets an ordinary error, as if it was not cancelled itself. A task that is cancelled before
its first step does not even reach a `finally` of its coroutine, so clean-up is done in done-callbacks of tasks. Used by
all clients. May touch: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from raylog.base.errors import ClientClosed, ConnectionFailed, RaylogError

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, None]]
"""Makes the coroutine that does the work."""
logger = logging.getLogger(__name__)

AGAIN_S = 0.05
"""How long after a cancellation from outside a task is started again; so not if its loop is about to end."""


class LastingTask:
    """A task that runs until `cancel`, or until it returns; it is started again if anything else cancels it."""

    def __init__(self, make: Work, name: str) -> None:
        """Starts on the running loop. `make` makes the coroutine, each time that the task is started."""
        self._make = make
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._is_wanted = True
        self._again: asyncio.TimerHandle | None = None
        self._begin()

    def done(self) -> bool:
        """Whether it has ended, and will not be started again."""
        return self.task.done() and self._again is None

    def cancel(self) -> None:
        """Cancel it for good. Idempotent."""
        self._is_wanted = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not self._loop.is_closed():  # a closed loop runs nothing, and refuses to cancel
            self.task.cancel()

    def _begin_again(self) -> None:
        logger.info("The task %r was cancelled from outside, and begins again.", self._name)
        self._begin()

    def _begin(self) -> None:
        self._again = None
        self.task = self._loop.create_task(self._make(), name=self._name)
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self._is_wanted:
            self._again = self._loop.call_later(AGAIN_S, self._begin_again)


class Ending:
    """Ends a client in a separate task, so that a caller which is cancelled does not leave it half closed.

    A first part may be cut short, such as a wait for pending records; the second part closes the client in any case.
    """

    def __init__(self) -> None:
        self._first: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the client is ending, or has ended."""
        return self._task is not None

    async def run(self, close: Work, first: Work | None = None) -> None:
        """Start the end, or join it; start `close` again if a framework cancelled it. Both parts need deadlines.

        If this call is cancelled, the first part is cut short, and the second part goes on in its task.
        """
        if self._task is None and first is not None:
            self._first = asyncio.get_running_loop().create_task(first(), name="raylog-ends")
            self._first.add_done_callback(mark_seen)
        while True:
            task = self._task
            if task is None or task.cancelled():
                task = self._task = asyncio.get_running_loop().create_task(self._both(close), name="raylog-closes")
                task.add_done_callback(mark_seen)
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                if self._first is not None:
                    self._first.cancel()
                raise
            if not task.cancelled():
                return task.result()

    async def _both(self, close: Work) -> None:
        try:
            if self._first is not None:
                await asyncio.wait([self._first])
        finally:
            await close()
        if self._first is not None and not self._first.cancelled():
            self._first.result()


async def outcome(task: asyncio.Task[Result], is_closed: Callable[[], bool], what: str) -> Result:
    """The result of a task that others wait for as well; a cancelled caller does not cancel the task.

    If the task was cancelled, raises ClientClosed if the client is closed, otherwise ConnectionFailed: the caller may
    try again. `what` completes "The client was closed while it ...".
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise cut_off(is_closed(), what)
    error = task.exception()
    if error is None:
        return task.result()
    raise error.with_traceback(None) if isinstance(error, RaylogError) else error


async def side_by_side(work: Callable[[Item], Coroutine[Any, Any, Result]], items: Iterable[Item]) -> list[Result]:
    """Run work on all items concurrently, as `asyncio.gather`; return the results in the order of the items.

    Work that is cancelled from outside is started again, so it may be done twice. The first error, or a cancellation of
    this call, cancels the rest.
    """
    parts = await _parts(work, list(items), asyncio.FIRST_EXCEPTION)
    for part in parts:
        if (error := _error_of(part)) is not None:
            raise error
    return [part.result() for part in parts]  # an exception object that a part returned is a result


async def outcomes(
    work: Callable[[Item], Coroutine[Any, Any, Result]], items: Iterable[Item]
) -> list[Result | BaseException]:
    """As `side_by_side`, but runs all to their ends; an error is returned as the item's outcome."""
    parts = await _parts(work, list(items), asyncio.ALL_COMPLETED)
    return [part.result() if (error := _error_of(part)) is None else error for part in parts]


async def _parts(
    work: Callable[[Item], Coroutine[Any, Any, Result]], items: Sequence[Item], until: str
) -> list[asyncio.Task[Result]]:
    """Run the parts; return those that are done: all, or with FIRST_EXCEPTION those until one failed."""
    tasks = [asyncio.ensure_future(work(item)) for item in items]
    try:
        while any(not task.done() for task in tasks):
            done, _ = await asyncio.wait(tasks, return_when=until)
            if until == asyncio.FIRST_EXCEPTION and any(not task.cancelled() and task.exception() for task in done):
                break
            for number, task in enumerate(tasks):
                if task.cancelled() and task.cancelling():
                    tasks[number] = asyncio.ensure_future(work(items[number]))
    finally:
        for task in tasks:
            task.cancel()
    return [task for task in tasks if task.done()]


def _error_of(part: asyncio.Task[Any]) -> BaseException | None:
    return cut_off(False, "did a part of this call") if part.cancelled() else part.exception()


def cut_off(is_closed: bool, what: str) -> RaylogError:
    """The error for work whose task was cancelled: because the client is closed, or from outside."""
    if is_closed:
        return ClientClosed(f"The client was closed while it {what}.")
    return ConnectionFailed(f"The client's task that {what} was cancelled from outside.")


def mark_seen(task: asyncio.Task[Any]) -> None:
    """Mark a task's exception as retrieved, because its callers got it or have given up; else asyncio logs it."""
    if not task.cancelled():
        task.exception()
