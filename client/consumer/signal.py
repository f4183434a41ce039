"""How the loop's thread wakes the one thread that waits in a synchronous poll(). May touch: one lock."""

from __future__ import annotations

import threading


class Signal:
    """As an Event, for one waiting thread, at a tenth of its cost: this is on the path of every awaited record.

    A successful wait clears the signal.
    """

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet = threading.Lock()  # locked: nothing has happened
        self._quiet.acquire()

    def set(self) -> None:
        """Set the signal. From any thread; idempotent."""
        try:
            self._quiet.release()
        except RuntimeError:
            pass  # it is set already

    def clear(self) -> None:
        """Clear the signal."""
        self._quiet.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the signal; False when it was not set in `timeout_s`."""
        return self._quiet.acquire(timeout=timeout_s)
