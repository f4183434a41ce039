"""One event loop in one daemon thread, shared by all synchronous clients of a process.

Used by Producer, Consumer and Admin; their asyncio twins run on the caller's own loop instead. `blocking` makes a
synchronous method from a coroutine method of the twin. After a fork the child does not have the thread, and makes a new
one. May touch: threads, the event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from raylog.base.errors import ClientClosed
from raylog.client.guard import NotPickled, of_another_process
from raylog.client.spinlock import refuse_waiting
from raylog.client.user_code import EXITS

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 2.0
_PARKED_S = 3600.0


logger = logging.getLogger(__name__)


def _ended() -> ClientClosed:
    return ClientClosed("The thread of this process's clients has ended; make a new client.")


class Runtime:
    """The loop and its thread, which end with the process. Get it with `shared()`."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="raylog-client", daemon=True)
        self._running = threading.Event()
        self._is_stopped = False
        self._waits: set[Pending[Any]] = set()
        """The work that threads wait for."""
        self.thread.start()
        if not self._running.wait(_START_TIMEOUT_S):
            raise RuntimeError(f"The client's thread did not start within {_START_TIMEOUT_S} seconds.")

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop and wait for its result in this thread.

        After `timeout_s` seconds, or at KeyboardInterrupt, it is cancelled, and TimeoutError or KeyboardInterrupt is
        raised. `timeout_s=None` is for coroutines that have a deadline of their own. Raises RuntimeError in a callback,
        which runs on the loop itself and would deadlock; ClientClosed if the thread does not exist, as after a fork;
        ConcurrentUse in a signal handler that has interrupted `send()`.
        """
        try:
            self._check_usable()
        except BaseException:
            work.close()
            raise
        wait = Pending(self.loop, work, self._waits)
        try:
            self.call_soon(wait.begin)
            return wait.result(timeout_s)
        except asyncio.CancelledError:
            park_at_exit()
            raise RuntimeError("The call was cancelled because the client's loop is ending.") from None
        except BaseException:  # KeyboardInterrupt too: if the wait ends, the work has to end
            wait.cancel()
            raise
        finally:
            self._waits.discard(wait)

    def begin(self, work: Coroutine[Any, Any, Result]) -> Pending[Result]:
        """Run a coroutine on the loop; the caller waits for its result later."""
        wait = Pending(self.loop, work, self._waits)
        self.call_soon(wait.begin)
        return wait

    def _check_usable(self) -> None:
        if self.is_current_thread():
            raise RuntimeError("A callback may not wait for a client; use the asyncio twin or another thread.")
        if not self.thread.is_alive():
            if os.getpid() != self._process:
                raise of_another_process("client")
            park_at_exit()
            raise _ended()
        refuse_waiting()

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop; from any thread. Raises ClientClosed if the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            park_at_exit()
            raise _ended() from None

    def is_current_thread(self) -> bool:
        """Whether the caller runs on the loop's thread."""
        # `is_alive` because the system may reuse the identifier of a thread that has ended.
        return self.thread.is_alive() and threading.get_ident() == self.thread.ident

    def stop(self) -> None:
        """End the loop and its tasks. Waits at most two seconds."""
        if self.thread.is_alive() and not self.is_current_thread():
            self._is_stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(_STOP_TIMEOUT_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._running.set)
        try:
            self._run_until_stopped()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=_STOP_TIMEOUT_S / 2))
        finally:
            self.loop.close()
            for wait in list(self._waits):  # their tasks will not end any more
                wait.end(_ended())

    def _run_until_stopped(self) -> None:
        """Run the loop until it is stopped. SystemExit and KeyboardInterrupt of user code do not end it."""
        while not self._is_stopped:
            try:
                self.loop.run_forever()
            except EXITS as error:
                logger.error("User code has raised %r on the clients' thread, which goes on.", error, exc_info=error)


class Pending(Generic[Result]):
    """Work on the loop that a thread waits for.

    Thread and loop share no lock: a signal handler could interrupt the thread while it holds the lock, and wait for the
    loop, which would wait for the lock.
    """

    __slots__ = ("_all", "_ended", "_error", "_is_cancelled", "_is_over", "_loop", "_result", "_task", "_work")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result], all_of_loop: set[Pending[Any]]
    ) -> None:
        self._all = all_of_loop
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[Result] | None = None
        self._ended = Signal()
        self._is_over = self._is_cancelled = False
        self._result: Any = None
        self._error: BaseException | None = None
        all_of_loop.add(self)

    # In the thread that waits

    def result(self, timeout_s: float | None) -> Result:
        """Return or raise the result of the work. Raises TimeoutError after `timeout_s` (None = no limit)."""
        while not self._is_over:
            if not self._ended.wait(timeout_s) and not self._is_over:
                raise TimeoutError(f"The work on the client's loop has not ended within {timeout_s} seconds.")
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # breaks a reference cycle: its traceback has this frame
        return self._result  # type: ignore[no-any-return]  # of the work

    def cancel(self) -> None:
        """Cancel the work, because the thread no longer waits for it."""
        self._is_cancelled = True
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop has ended, and the work with it
            if self._task is None:
                self._work.close()

    # On the loop

    def begin(self) -> None:
        """Start the work."""
        if self._is_cancelled:
            self._work.close()
            return
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._done)

    def end(self, error: BaseException) -> None:
        """Have the waiting thread raise an error, unless the work has ended."""
        if self._task is None:
            self._work.close()
        if not self._is_over:
            self._error = error
            self._is_over = True
            self._ended.set()

    def _cancel(self) -> None:
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def _done(self, task: asyncio.Task[Result]) -> None:
        if self._is_over:
            return
        if task.cancelled():
            self._error = asyncio.CancelledError()
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._result = task.result()
        self._is_over = True
        self._all.discard(self)
        self._ended.set()


class Signal:
    """As `threading.Event`, for one waiting thread, at a tenth of the cost: each record that is waited for needs it.

    A successful wait clears the signal.
    """

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet = threading.Lock()  # locked = the signal is not set
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

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the signal, and clear it; False if it was not set within `timeout_s` (None = no limit).

        Raises ConcurrentUse as `refuse_waiting` does.
        """
        if self._quiet.acquire(blocking=False):
            return True
        refuse_waiting()
        if timeout_s is None:
            return self._quiet.acquire()
        return self._quiet.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))


_lock = threading.RLock()  # reentrant: a signal handler may make a client while its own thread makes one
_shared: Runtime | None = None
_is_exiting = False


def park_at_exit() -> None:
    """While the program ends, park a daemon thread that uses a closed client; it ends with the program.

    Otherwise the thread would print a traceback, although nothing is wrong.
    """
    while _is_exiting and threading.current_thread().daemon:
        time.sleep(_PARKED_S)


def begin_exit() -> None:
    """Note that the program ends, so that daemon threads are parked (`park_at_exit`)."""
    global _is_exiting
    _is_exiting = True


def shared() -> Runtime:
    """The runtime of this process, made at the first call."""
    global _shared
    runtime = _shared
    if runtime is not None and runtime.thread.is_alive():
        return runtime
    with _lock:
        if _shared is None or not _shared.thread.is_alive():
            _shared = Runtime()
        return _shared


def _forget_after_fork() -> None:
    """Start afresh in a forked child: the thread does not exist there, and the lock may be held for good."""
    global _shared, _lock
    _shared = None
    _lock = threading.RLock()


def _stop_at_exit() -> None:
    begin_exit()
    if _shared is not None:
        _shared.stop()


class SynchronousClient(NotPickled):
    """Base of the synchronous clients, whose methods are made by `blocking` and `on_loop`. A context manager."""

    def __init__(self, asynchronous: object) -> None:
        self._asynchronous = asynchronous
        """The object on the loop whose methods are called."""
        self._runtime = shared()

    def _why_closed(self) -> str | None:
        """The reason why no call is possible any more; None while the client is open."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the client. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, function: Callable[[], Result]) -> Result:
        """Call a function on the loop and wait for its result. Raises ClientClosed."""

        async def work() -> Result:
            return function()

        return self._run(work())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work on the loop and wait for it. It needs a deadline of its own. Raises ClientClosed."""
        reason = self._why_closed()
        if reason is not None:
            work.close()
            raise ClientClosed(reason)
        return self._runtime.run(work)


def blocking(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Make a synchronous method of a coroutine method, with its signature and docstring; the caller's thread waits."""

    @wraps(method)
    def call(client: SynchronousClient, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        return client._run(method(client._asynchronous, *args, **options))

    return call


def on_loop(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """As `blocking`, for a plain method, which runs on the loop."""

    @wraps(method)
    def call(client: SynchronousClient, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        return client._do(lambda: method(client._asynchronous, *args, **options))

    return call


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_stop_at_exit)
