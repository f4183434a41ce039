"""Checks that a client is used in its own process and event loop, and by one thread or task at a time.

Every client belongs to the process in which it was made, because its connections and its thread do; an asyncio client
also to the loop on which it was started. An object that only one caller may use at a time has a `Turn`. The errors say
what to do instead. Pure, except for the fork hook.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, NoReturn

from raylog.base.errors import ClientClosed, ConcurrentUse


class ThisProcess:
    """Distinguishes a forked process from its parent: counts the forks since Raylog was imported."""

    __slots__ = ("forks",)

    def __init__(self) -> None:
        self.forks = 0
        """How many forks lie between that import and this process. An attribute, since each producer batch reads it."""


this_process: Final = ThisProcess()


def of_another_process(what: str) -> ClientClosed:
    """The error for an object that was made before a fork: its thread and connections belong to the parent."""
    return ClientClosed(f"The {what} was made before the fork; make a new one in the child process.")


class NotPickled:
    """Base of objects that cannot be sent to another process: they have connections, or wait for data of one."""

    __slots__ = ()

    def __reduce_ex__(self, _: Any) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError(not_pickled(type(self).__name__))


def not_pickled(name: str) -> str:
    """The message that says what to do instead of pickling a client."""
    return (
        f"A {name} cannot be pickled: it has connections of this process. Make it where it is used, in the task, "
        "actor or child process, with the same arguments."
    )


class Home:
    """The event loop and the process that an asyncio client belongs to once it has started."""

    __slots__ = ("_forks", "_name", "loop")

    def __init__(self, name: str) -> None:
        """`name`: the client's class, for messages."""
        self._name = name
        self._forks = this_process.forks
        self.loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """The client starts on the running loop. Raises ClientClosed if it was started on another one before."""
        self.check()
        self.loop = asyncio.get_running_loop()

    def started(self) -> None:
        """As `check`; raises ClientClosed before the start as well."""
        if self.loop is None:
            raise ClientClosed(f"This {self._name} is not started: `await start()`, or use `async with`.")
        self.check()

    def leave(self) -> None:
        """The start failed: the client no longer belongs to the loop."""
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
        """Whether this process was forked after the client was made."""
        return self._forks != this_process.forks

    @property
    def has_ended(self) -> bool:
        """Whether the loop is closed, so that nothing can be awaited on it any more."""
        return self.loop is not None and self.loop.is_closed()


class Turn:
    """A lock that does not wait: it is held by one thread or task at a time, and refuses a call while it is held.

    It is taken by deleting the attribute `free`, and released by setting it. As in `Spinlock`, that is one step, and
    no signal handler runs between it and a `try` right after it: so an interrupted call never leaves the turn held.
    """

    __slots__ = ("_refusal", "free", "holder")

    def __init__(self, refusal: Callable[[bool], str]) -> None:
        """`refusal(is_inside)` returns the error's message; `is_inside`: the refused caller itself holds the turn."""
        self.free = True
        self._refusal = refusal
        self.holder: object = None
        """The thread or task that holds it, once that has noted it; cleared before the turn is released."""

    def __enter__(self) -> None:
        """Take the turn. Raises ConcurrentUse when it is held."""
        caller = _caller()
        try:
            del self.free
            self.holder = caller
        except AttributeError:
            raise self.refused() from None

    def __exit__(self, *_: object) -> None:
        """Release the turn."""
        self.holder = None
        self.free = True

    @property
    def is_held_here(self) -> bool:
        """Whether this thread or task holds the turn."""
        return self.holder == _caller()

    def held_here(self) -> None:
        """Note that this thread or task holds the turn; call it after deleting `free`."""
        self.holder = _caller()

    def refused(self) -> ConcurrentUse:
        """The error for a call that finds the turn held."""
        holder = self.holder
        thread = holder if isinstance(holder, int) else 0
        return ConcurrentUse(self._refusal(self.is_held_here), thread=thread)


def _caller() -> object:
    loop = asyncio._get_running_loop()
    return get_ident() if loop is None else asyncio.current_task(loop)


def _count_fork() -> None:
    this_process.forks += 1


os.register_at_fork(after_in_child=_count_fork)
