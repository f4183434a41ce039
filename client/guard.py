"""Where a client may be used, and by how many: its process, its event loop, one thread or task at a time. Written once.

Every client of Raylog belongs to the process in which it was made, as its connections and its thread do; one of
asyncio to the loop on which it was started. What is not for several at once has a `Turn`. All refuse in the same
words, which say what to do. Pure, but for the hook of forks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, NoReturn

from raylog.core.errors import ClientClosed, ConcurrentUse


class ThisProcess:
    """This process, among those that have forked from the one that has imported Raylog."""

    __slots__ = ("forks",)

    def __init__(self) -> None:
        self.forks = 0
        """How many forks lie between: an attribute, as each batch of a producer looks at it."""


this_process: Final = ThisProcess()


def of_another_process(what: str) -> ClientClosed:
    """The error of what was made before a fork: its thread and connections belong to the parent."""
    return ClientClosed(f"The {what} was made before the fork; make a new one in the child process.")


class NotPickled:
    """Base of what cannot be sent to another process: it has connections, or waits for what arrives on one."""

    __slots__ = ()

    def __reduce_ex__(self, _: Any) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError(not_pickled(type(self).__name__))


def not_pickled(name: str) -> str:
    """What to do instead of pickling a client."""
    return (
        f"A {name} cannot be pickled: it has connections of this process. Make it where it is used, in the task, "
        "actor or child process, with the same arguments."
    )


class Home:
    """The event loop and the process of a client of asyncio, from its start on."""

    __slots__ = ("_forks", "_name", "loop")

    def __init__(self, name: str) -> None:
        """`name`: the client's class, for the user."""
        self._name = name
        self._forks = this_process.forks
        self.loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """The client starts on the running loop. Raises ClientClosed where it was started on another one."""
        self.check()
        self.loop = asyncio.get_running_loop()

    def started(self) -> None:
        """As `check`, and raise ClientClosed before the start as well."""
        if self.loop is None:
            raise ClientClosed(f"This {self._name} is not started: `await start()`, or use `async with`.")
        self.check()

    def leave(self) -> None:
        """The client was refused when it started: nothing of it is left on the loop."""
        self.loop = None

    def check(self) -> None:
        """Raise ClientClosed on another loop than the client's, and in a forked child."""
        loop = self.loop
        if loop is None or loop is asyncio._get_running_loop():
            return
        if self._forks != this_process.forks:
            raise of_another_process(self._name)
        state = "which has ended" if loop.is_closed() else "and is for that loop alone"
        raise ClientClosed(
            f"This {self._name} was started on another event loop, {state}: make one for each loop, inside the "
            "coroutine that asyncio.run() runs, or use its synchronous twin, which works in any thread."
        )

    @property
    def is_of_another_process(self) -> bool:
        """Whether a fork lies between the start and now."""
        return self._forks != this_process.forks

    @property
    def has_ended(self) -> bool:
        """Whether the loop is closed, so that nothing can be waited for any more."""
        return self.loop is not None and self.loop.is_closed()


class Turn:
    """Held by one thread, or task, at a time: a call that finds it held does not wait, but is refused.

    As in `Spinlock`: deleting `free` is one step, and no signal handler runs between it and a `try` right behind it,
    so that an interrupted call never leaves it held.
    """

    __slots__ = ("_refusal", "free", "holder")

    def __init__(self, refusal: Callable[[bool], str]) -> None:
        """`refusal(is_inside)`: what to say, to a call from inside the one that holds it, or from elsewhere."""
        self.free = True
        self._refusal = refusal
        self.holder: object = None
        """The thread or task that holds it, where it has noted that: cleared before the turn is free again."""

    def __enter__(self) -> None:
        """Take the turn. Raises ConcurrentUse when it is held."""
        caller = _caller()
        try:
            del self.free
            self.holder = caller
        except AttributeError:
            raise self.refused() from None

    def __exit__(self, *_: object) -> None:
        """Give it up."""
        self.holder = None
        self.free = True

    @property
    def is_held_here(self) -> bool:
        """Whether this thread, or task, holds it."""
        return self.holder == _caller()

    def held_here(self) -> None:
        """Note that this thread, or task, has deleted `free`."""
        self.holder = _caller()

    def refused(self) -> ConcurrentUse:
        """The error of a call while the turn is held."""
        holder = self.holder
        thread = holder if isinstance(holder, int) else 0
        return ConcurrentUse(self._refusal(self.is_held_here), thread=thread)


def _caller() -> object:
    loop = asyncio._get_running_loop()
    return get_ident() if loop is None else asyncio.current_task(loop)


def _count_fork() -> None:
    this_process.forks += 1


os.register_at_fork(after_in_child=_count_fork)
