"""One event loop in one daemon thread, shared by all synchronous clients of a process.

Used by Producer, Consumer and Admin; their asyncio twins run on the caller's own loop instead. `blocking` makes a
synchronous method from a coroutine of the twin. A fork leaves the thread behind in the parent, so the child makes
another. May touch: threads, the event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from raylog.client.user_code import EXITS
from raylog.core.errors import ClientClosed

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 2.0


logger = logging.getLogger(__name__)


def _ended() -> ClientClosed:
    return ClientClosed("The thread of this process's clients has ended; make a new client.")


class Runtime:
    """The loop and its thread. Get it with `shared()`; it ends with the process."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="raylog-client", daemon=True)
        self._running = threading.Event()
        self._is_stopped = False
        self._waits: set[concurrent.futures.Future[Any]] = set()
        """What threads wait for."""
        self.thread.start()
        if not self._running.wait(_START_TIMEOUT_S):
            raise RuntimeError(f"The client's thread did not start within {_START_TIMEOUT_S} seconds.")

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop and wait for its result in this thread.

        After `timeout_s` seconds, or at KeyboardInterrupt, it is cancelled and TimeoutError or KeyboardInterrupt is
        raised. `None` is for coroutines that have a deadline of their own. Not for callbacks, which run on the loop
        itself and would deadlock. Raises ClientClosed when the thread does not exist, as after a fork.
        """
        if self.is_current_thread():
            work.close()
            raise RuntimeError("A callback may not wait for a client; use the asyncio twin or another thread.")
        if not self.thread.is_alive():
            work.close()
            if os.getpid() != self._process:
                raise ClientClosed("The client was made before the fork; make a new one in the child process.")
            raise _ended()
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._waits.add(future)
        future.add_done_callback(self._waits.discard)
        try:
            if not self.thread.is_alive() and not future.done():
                raise _ended()  # it has ended since
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise RuntimeError("The call was cancelled because the client's loop is ending.") from None
        except BaseException:  # including KeyboardInterrupt: the end of the wait must end the work
            future.cancel()
            raise

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop; from any thread."""
        self.loop.call_soon_threadsafe(function, *args)

    def is_current_thread(self) -> bool:
        """Whether the caller runs on the loop's thread."""
        # The system gives the identifier of a thread that has ended to the next one.
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
            for future in list(self._waits):  # no task ends them any more
                if not future.done():
                    future.set_exception(_ended())

    def _run_until_stopped(self) -> None:
        """Run the loop until it is stopped; what is to end the program ends only the call that has raised it."""
        while not self._is_stopped:
            try:
                self.loop.run_forever()
            except EXITS as error:
                logger.error("User code has raised %r on the clients' thread, which goes on.", error, exc_info=error)


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


_lock = threading.Lock()
_shared: Runtime | None = None


def shared() -> Runtime:
    """The runtime of this process; made at the first call."""
    global _shared
    runtime = _shared
    if runtime is not None and runtime.thread.is_alive():
        return runtime
    with _lock:
        if _shared is None or not _shared.thread.is_alive():
            _shared = Runtime()
        return _shared


def _forget_after_fork() -> None:
    """In a forked child the thread does not exist, and the lock may be held by a thread of the parent."""
    global _shared, _lock
    _shared = None
    _lock = threading.Lock()


def _stop_at_exit() -> None:
    if _shared is not None:
        _shared.stop()


class SynchronousClient:
    """Base of the synchronous clients whose methods `blocking` and `on_loop` make. A context manager."""

    def __init__(self, asynchronous: object) -> None:
        self._asynchronous = asynchronous
        """The object on the loop whose methods are called."""
        self._runtime = shared()

    def _why_closed(self) -> str | None:
        """Why no call is possible any more; None while the client is open."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the client. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, function: Callable[[], Result]) -> Result:
        """Call a function on the loop, between its other work, and wait for its result. Raises ClientClosed."""

        async def work() -> Result:
            return function()

        return self._run(work())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for work on the loop; all has a deadline of its own, except a poll without one. Raises ClientClosed."""
        reason = self._why_closed()
        if reason is not None:
            work.close()
            raise ClientClosed(reason)
        return self._runtime.run(work)


def blocking(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """The synchronous form of a coroutine method: same signature and docstring, waits in the caller's thread."""

    @wraps(method)
    def call(client: SynchronousClient, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        return client._run(method(client._asynchronous, *args, **options))

    return call


def on_loop(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """As `blocking`, for a plain method: it runs on the loop, between its other work."""

    @wraps(method)
    def call(client: SynchronousClient, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        return client._do(lambda: method(client._asynchronous, *args, **options))

    return call


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_stop_at_exit)
