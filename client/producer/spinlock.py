"""`Spinlock`: a lock for steps that are shorter than what a lock of the standard library costs.

`threading.Lock` reads the clock whenever it is taken, and with `with` it costs a fifth of a microsecond, as much as all
else that `send()` does for a record in a batch. Used by the accumulator and `Producer.send`. Touches nothing.
"""

from __future__ import annotations

from time import sleep

_PAUSE_S = 0.000_05


class Spinlock:
    """Held by one thread at a time: by the one that has deleted `free`, until it sets `free` again.

    Deleting an attribute is one step under the interpreter's lock, and fails for all but one thread. No signal handler
    runs between it and the `try` behind it, as one may behind a call: Ctrl-C never leaves a turn that nobody ends.
    Hold it for a few steps only, and never wait in it: who finds it taken looks again after a pause. As a rule nobody
    does, because the interpreter changes threads at calls and loops, of which the shortest of these steps have none.

    Where even the call of a context manager is too much, as in `Producer.send`, write:

        while True:
            try:
                del turn.free
                break
            except AttributeError:
                turn.pause()
        try:
            ...
        finally:
            turn.free = True
    """

    __slots__ = ("free",)
    __deletable__ = ("free",)

    def __init__(self) -> None:
        self.free = True

    def __enter__(self) -> None:
        """Take the turn, as soon as it is free."""
        while True:
            try:
                del self.free
                return
            except AttributeError:
                self.pause()

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.free = True

    def pause(self) -> None:
        """Let the thread go on that has the turn."""
        sleep(_PAUSE_S)
