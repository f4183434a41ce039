"""`Spinlock`: a lock for critical sections that take less time than a lock of the standard library costs.

`threading.Lock` reads the clock at each acquisition. With `with` it costs a fifth of a microsecond, as much as the rest
of `send()` for a record. Used by the accumulator and `Producer.send`, and by the runtime before a thread waits. No I/O.
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

from raylog.base.errors import ConcurrentUse

_PAUSE_S = 0.000_05
Token = tuple[int] | list[int]
"""Identifies the holder of a lock: its thread's ident, in an object that belongs to one critical section only."""
_all: dict[int, weakref.ref[Spinlock]] = {}
_inlining: set[CodeType] = set()


class Spinlock:
    """A lock that a thread takes by deleting the attribute `free`, and releases by setting `free` again.

    Deleting an attribute is one step under the GIL, and succeeds for one thread only. No signal handler runs between it
    and a `try` right after it, as it could after a call, so Ctrl-C never leaves the lock held. Hold it for a few steps
    only, and never wait while you hold it: a thread that finds it held retries after a pause. This is rare, because the
    interpreter switches threads only at calls and loops, and the shortest critical sections have none.

    How to use it:

    - In a user's thread, where Ctrl-C may come at any call: `take` inside a `try`, with a new token. In `finally`, if
      `owner` is that token, set `owner` and `free` without a call. (An `__exit__` could be interrupted at its start.)
    - On the loop, whose thread runs no signal handlers: use `with`.
    - Where even these calls are too expensive: `Producer.send` deletes `free` itself, with a `try` right after it. If
      another thread holds the lock, it uses `Accumulator.append`, which waits here.

    A signal handler may interrupt a critical section of its own thread, which goes on only after the handler returns. A
    call in the handler that would wait for the lock, here or on the loop, raises ConcurrentUse. For this `owner` has
    the thread that took the lock; a function that deletes `free` itself is registered by `inlines`, and looked for on
    the stack.
    """

    __slots__ = ("__weakref__", "free", "owner")

    def __init__(self) -> None:
        self.free = True
        self.owner: Token | None = None
        number = id(self)
        _all[number] = weakref.ref(self, lambda _: _all.pop(number, None))

    def take(self, token: Token) -> None:
        """Acquire the lock; waits until it is free. Raises ConcurrentUse if this thread holds it already."""
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
        """Whether this thread holds the lock; if so, the caller is a signal handler, or called by one."""
        if hasattr(self, "free"):
            return False
        owner = self.owner
        return owner[0] == get_ident() if owner is not None else self._is_held_by_frame(sys._getframe(1))

    def _is_held_by_frame(self, frame: FrameType | None) -> bool:
        """Whether this frame, or one of its callers, holds the lock by deleting `free` itself (`inlines`)."""
        while frame is not None:
            if frame.f_code in _inlining and frame.f_lineno <= _last_line(frame.f_code):
                return any(value is self for value in frame.f_locals.values())
            frame = frame.f_back
        return False


def inlines(function: Callable[..., Any]) -> None:
    """Register a function that deletes `free` itself, instead of a call to `take`.

    It has to keep the lock in a local variable which is set only while it holds the lock: set right before the
    deletion, and deleted if that fails. The section ends with the last line that sets `free`. A compiled function needs
    no registration, since no signal handler runs in it.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        _inlining.add(code)


def refuse_waiting() -> None:
    """Call it before this thread waits for another: raises ConcurrentUse if this thread holds any `Spinlock`.

    The other thread might need that lock, and both would wait for good.
    """
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
