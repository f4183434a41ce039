"""`Bell`: has a loop call something, from any other thread, at a third of what `call_soon_threadsafe` costs.

That makes a handle with a copy of the context, sends a byte through a socket, and has the loop receive twice: the byte,
and then nothing. Each record that a thread sends alone wakes the loop, and waits until it is awake. May touch: an
eventfd (Linux; elsewhere the loop's own way is used).
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

    Its descriptor is closed with the last reference, not with the loop: until then a thread may ring, and the number
    could be that of another file. In a forked child it is the parent's, whose loop then finds nothing to do.
    """

    __slots__ = ("__weakref__", "_calls", "_descriptor")
    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Bell | None]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises NotImplementedError where the system or the loop has no place for it, OSError without descriptors."""
        self._calls: deque[Callable[[], object]] = deque()
        self._descriptor = -1
        if not hasattr(os, "eventfd"):
            raise NotImplementedError
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._descriptor, self._rung)

    @classmethod
    def on_running_loop(cls) -> Bell | None:
        """The bell of the running loop; None where there can be none."""
        loop = asyncio.get_running_loop()
        if loop not in cls._of_loops:
            try:
                cls._of_loops[loop] = cls(loop)
            except (NotImplementedError, OSError):
                cls._of_loops[loop] = None
        return cls._of_loops[loop]

    def ring(self, call: Callable[[], object]) -> None:
        """Have the loop call this soon. From any thread; nothing happens once the loop is closed."""
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
            if calls:  # one has failed: the loop reports that, and then comes back for the others
                os.eventfd_write(self._descriptor, 1)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may have ended by then
        if self._descriptor >= 0:
            close(self._descriptor)
