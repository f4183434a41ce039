"""`Spinlock`: a lock for critical sections shorter than the cost of a standard library lock.

`threading.Lock` reads the clock at each acquisition, and with `with` it costs a fifth of a microsecond, as much as the
rest of `send()` for a record in a batch. Used by the accumulator and `Producer.send`, and by the runtime, before a
thread waits. No I/O.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable
from functools import cache
from threading import get_ident
from time import sleep
from types import CodeType, FrameType
from typing import Any

from raylog.core.errors import ConcurrentUse

_PAUSE_S = 0.000_05
Token = tuple[int] | list[int]
"""What has taken a lock: its thread, in an object that no other section has."""
_all: dict[int, weakref.ref[Spinlock]] = {}
_inlining: set[CodeType] = set()


class Spinlock:
    """Held by one thread at a time: the thread that deleted `free`, until it sets `free` again.

    Deleting an attribute is one step under the interpreter's lock, and fails for all but one thread. No signal handler
    runs between it and the `try` behind it, as one may behind a call: Ctrl-C never leaves the lock held. Hold it for a
    few steps only, and never wait in it: a thread that finds it held retries after a pause. That is rare, because the
    interpreter switches threads at calls and loops, and the shortest of these sections have none.

    In a thread of the user's, where Ctrl-C may come at any call, `take` it inside a `try` with a token of one's own,
    and set `owner` and `free` without a call in its `finally`, where `owner` is that token: an `__exit__` could be
    interrupted before its first step. On the loop, whose thread runs no signal handlers, use `with`. Where even these
    calls are too expensive, `Producer.send` deletes `free` itself, with its `try` right behind. If another thread holds
    the lock it goes the general way, which waits here.

    A signal handler may run amid a section of its own thread, which goes on only when the handler has returned. What
    would wait for that lock there, in this thread or on the loop, is refused with ConcurrentUse. `owner` names the
    thread that has taken it; a function that does so itself is registered by `inlines`, and found on the stack.
    """

    __slots__ = ("__weakref__", "free", "owner")

    def __init__(self) -> None:
        self.free = True
        self.owner: Token | None = None
        number = id(self)
        _all[number] = weakref.ref(self, lambda _: _all.pop(number, None))

    def take(self, token: Token) -> None:
        """Acquire the lock; waits until it is free. Raises ConcurrentUse when this thread holds it."""
        while True:
            try:
                del self.free
                self.owner = token
                return
            except AttributeError:
                if self.is_held_here:
                    raise _amid_send() from None
                sleep(_PAUSE_S)  # yields to the thread that holds the lock

    def __enter__(self) -> None:
        """Acquire the lock, on the loop."""
        try:
            del self.free
        except AttributeError:
            self.take((get_ident(),))
        else:
            self.owner = (get_ident(),)

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.owner = None
        self.free = True

    @property
    def is_held_here(self) -> bool:
        """Whether this thread holds the lock: then the caller is a signal handler, or is called by one."""
        if hasattr(self, "free"):
            return False
        owner = self.owner
        return owner[0] == get_ident() if owner is not None else self._is_held_by_frame(sys._getframe(1))

    def _is_held_by_frame(self, frame: FrameType | None) -> bool:
        """Whether one of these frames, or of those that called them, has acquired the lock itself."""
        while frame is not None:
            if frame.f_code in _inlining and frame.f_lineno <= _last_line(frame.f_code):
                return any(value is self for value in frame.f_locals.values())
            frame = frame.f_back
        return False


def inlines(function: Callable[..., Any]) -> None:
    """Register a function that holds a lock itself: in a local variable, from the line behind its deletion on.

    The variable may not be set before, and is to be cleared where the lock was not free. The section ends with the last
    line that sets `free`. A compiled function needs none of this: no signal handler runs in it.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        _inlining.add(code)


def refuse_waiting() -> None:
    """Raise ConcurrentUse where this thread holds a lock that the thread it is about to wait for may need."""
    for reference in list(_all.values()):
        lock = reference()
        if lock is not None and not hasattr(lock, "free") and lock.is_held_here:
            raise _amid_send()


@cache
def _last_line(code: CodeType) -> int:
    sets = [each for each in dis.get_instructions(code) if each.opname == "STORE_ATTR" and each.argval == "free"]
    return max(each.positions.lineno or 0 for each in sets if each.positions is not None)


def _amid_send() -> ConcurrentUse:
    return ConcurrentUse(
        "A signal handler has interrupted send() in this thread, and nothing of a client can be waited for until that "
        "goes on: have the handler set a flag that the program looks at, or raise an exception."
    )
