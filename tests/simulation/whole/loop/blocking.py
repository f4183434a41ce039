"""Replacements in a world for ``threading.Thread``, ``Lock``, queues and pools of threads in shipped modules.

A blocking call in a virtual thread yields to the world. A loop's own thread never waits: the awaited thread is hurried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from queue import Empty
from typing import Any, Final, Self

from tests.simulation.whole.loop.threads import SimThread, Threads

LATE_S: Final = 0.000_02
"""By which a thread whose wait is over wakes late. Time passes even where the wait is too short to change a float."""
_bound: list[Threads] = []


def bind(threads: Threads) -> None:
    """Bind this module to a world; done once in its process."""
    _bound[:] = [threads]


def _threads() -> Threads:
    return _bound[0]


class Thread:
    """`threading.Thread`."""

    def __init__(
        self,
        target: Callable[..., object],
        args: Iterable[Any] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._target, self._args = target, tuple(args)
        self._thread: SimThread | None = None

    def _run(self) -> None:
        self._target(*self._args)

    def start(self) -> None:
        process = _threads().scheduler.current
        assert process is not None, "a thread is started outside every process"
        self._thread = _threads().spawn(process, self._run)

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.is_over


class Lock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._is_held = False
        self._holder: SimThread | None = None
        self._waiters: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._is_held:
            if not blocking:
                return False
            me, holder = _threads().scheduler.thread, self._holder
            if holder is not None and not holder.process.is_alive:
                break  # a lock of the module, of which each process has its own in production
            if me is not None:
                self._waiters.append(me)
                me.block()
            elif holder is not None:
                holder.hurry()
            else:
                raise AssertionError("a loop waits for a lock that it holds itself")
        self._is_held, self._holder = True, _threads().scheduler.thread
        return True

    def release(self) -> None:
        self._is_held, self._holder = False, None
        if self._waiters:
            self._waiters.popleft().wake()

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        if self._is_held:
            return self.acquire()
        self._is_held, self._holder = True, _threads().scheduler.thread
        return True

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """`threading.RLock`: within one turn nothing else runs, so depth is all that counts."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_held and self._holder is _threads().scheduler.thread:
            self._depth += 1
            return True
        return super().acquire(blocking, timeout)

    def release(self) -> None:
        if self._depth:
            self._depth -= 1
        else:
            super().release()

    def __enter__(self) -> bool:
        return self.acquire()


class Event:
    """`threading.Event`; only virtual threads wait."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[SimThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def wait(self, timeout: float | None = None) -> bool:
        me = _threads().scheduler.thread
        assert me is not None, "an event loop waits for a thread"
        if not self._is_set:
            self._waiters.append(me)
            if timeout is not None:
                me.wake(timeout + LATE_S)
            me.block()
            self._waiters = [waiter for waiter in self._waiters if waiter is not me]
        return self._is_set


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __class_getitem__(cls, _: object) -> type[Self]:
        return cls

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiter: SimThread | None = None

    def put(self, item: object) -> None:
        self._items.append(item)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.wake()

    def get(self) -> Any:
        while not self._items:
            me = _threads().scheduler.thread
            assert me is not None, "a loop waits for a queue"
            self._waiter = me
            me.block()
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class ThreadPoolExecutor:
    """`concurrent.futures.ThreadPoolExecutor`: its threads end when no work waits."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self._free = max_workers
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_shut = False

    def submit(self, call: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        outcome: Future[Any] = Future()
        self._work.append((outcome, partial(call, *args, **options)))
        if self._free:
            self._free -= 1
            process = _threads().scheduler.current
            assert process is not None, "work is given to a pool outside every process"
            _threads().spawn(process, self._serve)
        return outcome

    def _serve(self) -> None:
        me = _threads().scheduler.thread
        assert me is not None
        while self._work:
            outcome, call = self._work.popleft()
            if not outcome.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except Exception as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)
            if self._work:
                me.wake()  # others run between two pieces of work
                me.block()
        self._free += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        assert not wait, "an event loop waits for threads"
        self._is_shut = True
        while cancel_futures and self._work:
            outcome, _ = self._work.popleft()
            outcome.cancel()


def get_ident() -> int:
    """As `threading.get_ident`: a loop's own thread has the number of its process, others one below -1."""
    scheduler = _threads().scheduler
    thread, process = scheduler.thread, scheduler.current
    return thread.number if thread is not None else -1 if process is None else process.number
