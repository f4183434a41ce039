"""Tasks of a client on its loop that live as long as it does, and waits for those that several callers share.

A framework may cancel every task of a loop. What lives long then begins again, and a wait for a shared task is not
taken for the cancellation of the one that waits. A task that is cancelled before its first step does not even reach a
`finally` of its coroutine: what has to be done when it is over, a callback of the task does. Used by all clients. May
touch: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from raylog.core.errors import ClientClosed, ConnectionFailed, RaylogError

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, None]]
"""Begins something."""
logger = logging.getLogger(__name__)

AGAIN_S = 0.05
"""So long after it was cancelled from outside a task begins again: not where its loop is about to end."""


class LastingTask:
    """A task that goes on until `cancel`, or until it returns; it begins again when anything else cancels it."""

    def __init__(self, make: Work, name: str) -> None:
        """`make` begins the work, on the running loop; it may do so several times."""
        self._make = make
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._is_wanted = True
        self._again: asyncio.TimerHandle | None = None
        self._begin()

    def done(self) -> bool:
        """Whether it has ended, and does not begin again."""
        return self.task.done() and self._again is None

    def cancel(self) -> None:
        """End it, for good. Idempotent."""
        self._is_wanted = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not self._loop.is_closed():  # else nothing goes on, and nothing can be cancelled
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
    """The end of a client, as a task of its own: a caller that is cancelled while it waits does not leave it halfway.

    First comes what may be cut short, such as the wait for records under way; then what is closed in any case.
    """

    def __init__(self) -> None:
        self._first: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the client is ending, or has ended."""
        return self._task is not None

    async def run(self, close: Work, first: Work | None = None) -> None:
        """Begin, or join what has begun, or begin again what a framework has cancelled; both have deadlines.

        Cut off, this wait cuts the first part short, and the second goes on without it.
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
    """The result of a task that others wait for as well; the end of this wait is not that of the task.

    Raises ClientClosed where the task was cancelled because the client is closed, ConnectionFailed where something else
    has cancelled it: the caller may try again.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise cut_off(is_closed(), what)
    error = task.exception()
    if error is None:
        return task.result()
    raise error.with_traceback(None) if isinstance(error, RaylogError) else error


async def side_by_side(work: Callable[[Item], Coroutine[Any, Any, Result]], items: Iterable[Item]) -> list[Result]:
    """What work on each item returns, in their order; done at once, as by `asyncio.gather`.

    A part that something else cancels begins again, so it may be done twice. The first error ends the others, and so
    does the end of this wait.
    """
    parts = await _parts(work, list(items), asyncio.FIRST_EXCEPTION)
    for part in parts:
        if (error := _error_of(part)) is not None:
            raise error
    return [part.result() for part in parts]  # an error that a part returns is no error of it


async def outcomes(
    work: Callable[[Item], Coroutine[Any, Any, Result]], items: Iterable[Item]
) -> list[Result | BaseException]:
    """As `side_by_side`, to the end of all: the error of a part is its outcome."""
    parts = await _parts(work, list(items), asyncio.ALL_COMPLETED)
    return [part.result() if (error := _error_of(part)) is None else error for part in parts]


async def _parts(
    work: Callable[[Item], Coroutine[Any, Any, Result]], items: Sequence[Item], until: str
) -> list[asyncio.Task[Result]]:
    """Return the parts that are done: all, or those until one has failed."""
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
    """The error of work whose task was cancelled: by the end of the client, or by something else."""
    if is_closed:
        return ClientClosed(f"The client was closed while it {what}.")
    return ConnectionFailed(f"The client's task that {what} was cancelled from outside.")


def mark_seen(task: asyncio.Task[Any]) -> None:
    """Take note of how a task has ended: its callers have, or have given up."""
    if not task.cancelled():
        task.exception()
