"""Virtual threads: real ones of which exactly one runs at a time, in the order that the scheduler decides.

Shipped code that starts threads (syncs, metadata voters, work in executors) runs unchanged; a blocking call in a thread
(``blocking.py``, ``time.sleep``) yields to the scheduler.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final

from tests.simulation.whole.loop.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.simulation.whole.loop.processes import SimProcess

WAKE_S: Final = (0.000_005, 0.000_060)
"""Wake-up latency of a thread."""
STACK_BYTES: Final = 512 * 1024
_numbers = count(-2, -1)


class Threads:
    """All virtual threads of a world."""

    def __init__(self, scheduler: Scheduler) -> None:
        """No thread yet."""
        self.scheduler = scheduler
        self.back = _thread.allocate_lock()
        self.back.acquire()
        self.idle: list[_Carrier] = []
        threading.stack_size(STACK_BYTES)

    def spawn(self, process: SimProcess, work: Callable[[], None]) -> SimThread:
        """Run a function in a thread of a process, soon."""
        thread = SimThread(self, process, work)
        thread.wake()
        return thread


class _Carrier:
    """A real thread that runs virtual ones, one after another."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.go = _thread.allocate_lock()
        self.go.acquire()
        self.thread: SimThread | None = None
        _thread.start_new_thread(self._serve, ())

    def _serve(self) -> None:
        while True:
            self.go.acquire()
            thread = self.thread
            assert thread is not None
            try:
                thread.work()
            except BaseException as error:
                if thread.process.is_alive:
                    self.threads.scheduler.fail(thread.process, f"thread: {error!r}", error)
            thread.finished()
            self.thread = None
            self.threads.idle.append(self)
            self.threads.back.release()


class SimThread:
    """One virtual thread of one process."""

    def __init__(self, threads: Threads, process: SimProcess, work: Callable[[], None]) -> None:
        self.threads = threads
        self.process = process
        self.work = work
        self.number = next(_numbers)
        """What ``threading.get_ident`` returns in it: never the number of a process's own thread."""
        self.is_over = False
        self.is_hurried = False
        """While it runs because its process's event loop waits for a resource that it holds."""
        self._carrier: _Carrier | None = None
        self._joiners: list[SimThread] = []
        self._wakes = 0

    def wake(self, delay_s: float | None = None) -> None:
        """Start or resume the thread after a delay; by default as soon as a thread wakes up."""
        self._wakes += 1
        scheduler = self.threads.scheduler
        scheduler.after(scheduler.between(*WAKE_S) if delay_s is None else delay_s, self._due, self._wakes)

    def hurry(self) -> None:
        """Resume the thread at once: a loop's own thread waits for a resource it holds."""
        self._wakes += 1
        self.is_hurried = True
        self._run()
        self.is_hurried = False

    def _due(self, number: int) -> None:
        if number == self._wakes and self.process.when_running(lambda: self._due(number)):
            self._run()

    def _run(self) -> None:
        if self.is_over or not self.process.is_alive:
            return
        threads, scheduler = self.threads, self.threads.scheduler
        carrier = self._carrier
        if carrier is None:
            carrier = threads.idle.pop() if threads.idle else _Carrier(threads)
            self._carrier, carrier.thread = carrier, self
        outer_process, outer_thread = scheduler.current, scheduler.thread
        scheduler.current, scheduler.thread = self.process, self
        scheduler.events += 1
        carrier.go.release()
        threads.back.acquire()
        scheduler.current, scheduler.thread = outer_process, outer_thread

    def block(self) -> None:
        """Yield to the world until this thread is woken; called in the thread itself."""
        carrier = self._carrier
        assert carrier is not None
        self.threads.back.release()
        carrier.go.acquire()

    def sleep(self, delay_s: float) -> None:
        """Resume after a delay; called in the thread itself."""
        self.wake(delay_s)
        self.block()

    def finished(self) -> None:
        """The work has returned."""
        self.is_over = True
        for joiner in self._joiners:
            joiner.wake()

    def join(self, timeout_s: float | None) -> None:
        """Wait until the thread has ended; in a loop's own thread it is run to its end."""
        scheduler = self.threads.scheduler
        waiting = scheduler.thread
        if waiting is None:
            for _ in range(10_000):
                if self.is_over:
                    return
                self.hurry()
            raise AssertionError("a thread that is joined does not end")
        if not self.is_over:
            self._joiners.append(waiting)
            if timeout_s is not None:
                waiting.wake(timeout_s)
            waiting.block()
