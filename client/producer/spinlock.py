"""`Spinlock`: a lock for critical sections shorter than the cost of a standard library lock.

`threading.Lock` reads the clock at each acquisition, and with `with` it costs a fifth of a microsecond, as much as the
rest of `send()` for a record in a batch. Used by the accumulator and `Producer.send`. No I/O.
"""

from __future__ import annotations

from time import sleep

_PAUSE_S = 0.000_05


class Spinlock:
    """Held by one thread at a time: the thread that deleted `free`, until it sets `free` again.

    Deleting an attribute is one step under the interpreter's lock, and fails for all but one thread. No signal handler
    runs between it and the `try` behind it, as one may behind a call: Ctrl-C never leaves the lock held. Hold it for a
    few steps only, and never wait in it: a thread that finds it held retries after a pause. That is rare, because the
    interpreter switches threads at calls and loops, and the shortest of these sections have none.

    Where even the calls of a context manager are too expensive, `Producer.send` deletes `free` itself, with its `try`
    right behind. If another thread holds the lock it goes the general way, which waits here.
    """

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free = True

    def __enter__(self) -> None:
        """Acquire the lock; waits until it is free."""
        while True:
            try:
                del self.free
                return
            except AttributeError:
                sleep(_PAUSE_S)  # yields to the thread that holds the lock

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.free = True
