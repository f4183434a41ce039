"""How the loop's thread wakes the one thread that waits in a synchronous poll(). Touches nothing but a lock."""

from __future__ import annotations

import threading


class Signal:
    """As an Event, for one waiting thread, and a tenth of its cost: this is on the way of every record that is awaited.

    A wait that succeeds takes the signal back.
    """

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet = threading.Lock()  # locked: nothing has happened
        self._quiet.acquire()

    def set(self) -> None:
        """Something has happened. From any thread; again: nothing."""
        try:
            self._quiet.release()
        except RuntimeError:
            pass  # it is set already

    def clear(self) -> None:
        """Forget what has happened so far."""
        self._quiet.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait until something happens; False when nothing did in `timeout_s`."""
        return self._quiet.acquire(timeout=timeout_s)
