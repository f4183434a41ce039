"""A simulated process: an event loop of its own, on the world's clock, that can be killed and paused.

Shipped code finds it with ``asyncio.get_running_loop()``, like its process's loop in production. State that is kept for
each loop there (tasks, :class:`raylog.rpc.sending.WriteCoalescer`) is kept for each simulated process here.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import TYPE_CHECKING, Any

from raylog.storage import filesystem
from tests.simulation.whole.loop.scheduler import ProcessEnded, Scheduler

if TYPE_CHECKING:
    from tests.simulation.whole.loop.network import Network, SimTransport

_numbers = count(1)
_hashes = count(1)


class SimFuture(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address."""

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            self.number: int = next(_hashes)
            return self.number


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    __hash__ = SimFuture.__hash__


class InputHandle(asyncio.Handle):
    """A callback for what has come in from outside: a socket of the process can be read."""

    __slots__ = ()


class SimProcess(asyncio.BaseEventLoop):
    """One process on one host.

    A killed process runs nothing more, not even its ``finally`` blocks: its objects are kept until the run ends.
    A paused one (SIGSTOP) keeps its ready callbacks; its sockets still receive. One that is blocked keeps them, too,
    and its other threads go on.
    """

    def __init__(self, scheduler: Scheduler, network: Network, name: str, host: str) -> None:
        """No code runs before the first callback. The base class's own queues are not made: nothing here uses them."""
        self.is_alive = True
        self.scheduler = scheduler
        self.network = network
        self.name = name
        self.host = host
        self.number = next(_numbers)
        self.ready: deque[asyncio.Handle] = deque()
        self.is_paused = False
        """Whether it is stopped now, by whatever signal."""
        self.is_dozing = False
        """Whether its broker has stopped it and not continued it, as far as the broker knows."""
        self.is_blocked = False
        """Whether the thread of its event loop waits in a system call."""
        self.changed_s = scheduler.now_s
        """When it was started, or began or ceased to hang."""
        self.is_queued = False
        self.transports: dict[SimTransport, None] = {}
        self.descriptors: dict[int, None] = {}
        """Open files, which the kernel closes with the process, releasing their locks."""
        self.on_end: Callable[[SimProcess], None] | None = None
        self.closers: dict[Callable[[], None], None] = {}
        """What the kernel does besides when the process is killed."""
        self.watchers: dict[Callable[[], None], None] = {}
        """Called when something has come in."""
        self._held: list[Callable[[], None]] = []
        self._graves: list[object] = []

    @property
    def may_run(self) -> bool:
        """Whether callbacks are run now."""
        return self.is_alive and not self.is_paused and not self.is_blocked

    @property
    def hangs(self) -> bool:
        """Whether it is stopped, and not by its broker."""
        return self.is_paused and not self.is_dozing

    # ------------------------------------------------------------ the event loop

    def time(self) -> float:
        """Return virtual seconds."""
        return self.scheduler.read_clock()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next turn."""
        handle = events.Handle(callback, args, self, context)
        if self.is_alive:
            self.ready.append(handle)
            if not self.is_queued and not self.is_paused:
                self.scheduler.runnable(self)
        else:
            self._graves.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As :meth:`call_soon`: only one thread of the world runs at a time. It wakes the loop by a socket."""
        return self.call_input(callback, *args, context=context)

    def call_input(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next turn that the loop learns of by a socket."""
        handle = InputHandle(callback, args, self, context)
        if self.is_alive:
            self.ready.append(handle)
            self.scheduler.runnable(self)
            for arrived in list(self.watchers):
                arrived()
        else:
            self._graves.append(handle)
        return handle

    def has_input(self) -> bool:
        """Whether something can be read from one of its sockets now."""
        return any(isinstance(handle, InputHandle) and not handle._cancelled for handle in self.ready)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a time."""
        timer = events.TimerHandle(when, callback, args, self, context)
        if self.is_alive:
            self.scheduler.timer(self, timer)
        else:
            self._graves.append(timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback after a delay."""
        return self.call_at(self.scheduler.now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The agenda drops cancelled timers when they are due."""

    def take(self, handle: asyncio.Handle) -> None:
        """A timer is due."""
        if self.is_alive:
            self.ready.append(handle)
            if not self.is_queued and not self.is_paused:
                self.scheduler.runnable(self)
        else:
            self._graves.append(handle)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return SimFuture(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """Return a task of this loop."""
        return SimTask(coro, loop=self, name=None if name is None else str(name), context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a virtual thread of this process."""
        future = self.create_future()

        def set_result(result: object, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon_threadsafe(set_result, None, error)
            else:
                self.call_soon_threadsafe(set_result, result, None)

        self.network.threads.spawn(self, work)
        return future

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Return a server on this process's host; it serves after ``start_serving``."""
        return self.network.server(self, protocol_factory, str(host), int(port or 0))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **how: Any) -> Any:
        """Connect over the virtual network. No server there speaks TLS: it closes what begins with its greeting."""
        made = await self.network.connect(self, protocol_factory, str(host), int(port))
        if how.get("ssl") is not None:
            made[0].abort()
            raise ConnectionResetError(f"{host}:{port} does not speak TLS")
        return made

    def remove_reader(self, fd: Any) -> bool:
        """Accept no more connections on a listening socket; those on their way are refused."""
        return self.network.listeners.pop(fd, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an unhandled exception; a task that ended unobserved is a line of the story."""
        if not self.is_alive:
            return
        text, error = str(context.get("message")), context.get("exception")
        if "never retrieved" in text:
            self.scheduler.log(self.name, f"{text}: {error!r}")
        else:
            self.scheduler.fail(self, text, error)

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.is_alive

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return not self.is_alive

    def get_debug(self) -> bool:
        """Never."""
        return False

    def __del__(self) -> None:
        """Nothing of the base class was opened."""

    # ------------------------------------------------------------ faults

    def kill(self, why: str = "killed") -> None:
        """End the process at once, as SIGKILL does: the kernel closes its files and sockets."""
        if not self.is_alive:
            return
        self.scheduler.log(self.name, f"ends: {why}")
        self._graves.extend(asyncio.all_tasks(self))
        self._graves.append(list(self.ready))
        self.is_alive = False
        self.ready.clear()
        self.network.process_ended(self)
        for close in list(self.closers):
            close()
        for descriptor in list(self.descriptors):
            filesystem.close(descriptor)
        self.descriptors.clear()
        if self.on_end is not None:
            self.on_end(self)

    def exit(self, why: str) -> None:
        """End the process from inside, as ``os._exit`` does: does not return."""
        self.kill(why)
        raise ProcessEnded

    def pause(self) -> None:
        """Hold all callbacks, as a user's SIGSTOP does."""
        if self.is_alive and not self.is_paused:
            self._turn_to(is_paused=True, is_dozing=self.is_dozing)
            self.scheduler.log(self.name, "is paused")

    def resume(self) -> None:
        """Resume, as a user's SIGCONT does. The broker does not learn of it."""
        if self.is_paused:
            self.scheduler.log(self.name, "goes on")
            self._turn_to(is_paused=False, is_dozing=self.is_dozing)

    def doze(self) -> None:
        """Hold all callbacks, because the broker says so."""
        if self.is_alive:
            self._turn_to(is_paused=True, is_dozing=True)

    def awake(self) -> None:
        """Resume, because the broker or its keeper says so; nothing happens to a process that runs."""
        self._turn_to(is_paused=False, is_dozing=False)

    def _turn_to(self, *, is_paused: bool, is_dozing: bool) -> None:
        hung, goes_on = self.hangs, self.is_paused and not is_paused
        self.is_paused, self.is_dozing = is_paused, is_dozing
        if self.hangs != hung:
            self.changed_s = self.scheduler.now_s
        if goes_on:
            held, self._held = self._held, []
            for call in held:
                call()
            if self.ready:
                self.scheduler.runnable(self)

    async def block(self, wait: Callable[[Callable[[], None]], None]) -> None:
        """Wait as a system call does: nothing else runs on the loop meanwhile, and this goes on first afterwards.

        ``wait`` gets the function that ends it, to be called while the process runs.
        """
        over = self.create_future()

        def end() -> None:
            if self.is_alive and not over.done():
                self.is_blocked = False
                over.set_result(None)
                self.ready.rotate(1)
                self.scheduler.runnable(self)

        self.is_blocked = True
        wait(end)
        await over

    def when_running(self, call: Callable[[], None]) -> bool:
        """Return whether the process runs; if it is paused, ``call`` is called when it resumes."""
        if self.is_paused:
            self._held.append(call)
        return self.is_alive and not self.is_paused
