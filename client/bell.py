"""`Bell`: lets any thread schedule a call on an event loop, at a third of the cost of `call_soon_threadsafe`.

`call_soon_threadsafe` makes a handle with a copy of the context, sends a byte through a socket, and has the loop
receive twice: the byte, and then nothing. The cost matters for a thread that sends one record at a time: each send
wakes the loop, and waits until it is awake. May touch: an eventfd (Linux only; elsewhere callers use
`call_soon_threadsafe`).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import ClassVar
from weakref import WeakKeyDictionary


class Bell:
    """The bell of one loop.

    Its descriptor is closed with the last reference, not with the loop: until then a thread may still ring, and a
    closed descriptor's number might already belong to another file. A forked child shares the parent's eventfd: when
    the child rings, the parent's loop wakes and finds nothing to do.
    """

    __slots__ = ("__weakref__", "_calls", "_descriptor")
    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Bell | None]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises NotImplementedError if the system or the loop does not support it, OSError without descriptors."""
        self._calls: deque[Callable[[], object]] = deque()
        self._descriptor = -1
        if not hasattr(os, "eventfd"):
            raise NotImplementedError
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._descriptor, self._rung)

    @classmethod
    def on_running_loop(cls) -> Bell | None:
        """The bell of the running loop; None where bells are not supported."""
        loop = asyncio.get_running_loop()
        if loop not in cls._of_loops:
            try:
                cls._of_loops[loop] = cls(loop)
            except (NotImplementedError, OSError):
                cls._of_loops[loop] = None
        return cls._of_loops[loop]

    def ring(self, call: Callable[[], object]) -> None:
        """Schedule a call on the loop. From any thread; nothing happens once the loop is closed."""
        self._calls.append(call)
        os.eventfd_write(self._descriptor, 1)

    def _rung(self) -> None:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            pass  # a forked child has read it
        calls = self._calls
        try:
            while calls:
                calls.popleft()()
        finally:
            if calls:  # a call raised: the loop reports that, then comes back for the others
                os.eventfd_write(self._descriptor, 1)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may have ended by then
        if self._descriptor >= 0:
            close(self._descriptor)
