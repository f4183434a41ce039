"""The clock, randomness, threads and files of shipped modules while a world runs.

The modules are the shipped ones; only their names for the standard library are bound to the world's.
Done once in a process that runs one seed and ends.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import os
import pkgutil
import queue
import random
import secrets
import sys
import threading
import time
import types
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from raylog.actors.clock import since_boot_ns
from raylog.actors.token_clock import TokenClock, token_clock
from raylog.rpc import Connection
from raylog.storage import filesystem
from tests.simulation.whole.loop import blocking
from tests.simulation.whole.loop.processes import SimFuture, SimProcess
from tests.simulation.whole.loop.scheduler import WALL_S, Scheduler

if TYPE_CHECKING:
    from tests.simulation.whole.loop.network import Network

ROOMS: Final = ("base", "core", "storage", "rpc", "client", "actors", "protocol")
WITHOUT: Final = ("raylog.actors.processes", "raylog.actors.broker.node_watch", "raylog.client.cluster.ray_session")
"""Ray's modules: the world replaces them."""
_LOCK_TYPES: Final = (type(threading.Lock()), type(threading.RLock()))


def shipped_modules() -> list[types.ModuleType]:
    """Import and return every shipped module that a world runs."""
    for room in ROOMS:
        package = importlib.import_module(f"raylog.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"raylog.{room}."):
            if not found.name.startswith(WITHOUT):
                importlib.import_module(found.name)
    return [module for name, module in sorted(sys.modules.items()) if name.startswith("raylog.")]


def bind(scheduler: Scheduler, network: Network, system: object = filesystem) -> None:
    """Bind the shipped modules to a world, and storage to its file system."""
    blocking.bind(network.threads)
    files = HostFiles(scheduler, system)
    shims = _shims(scheduler, network, files)
    for module in shipped_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, _LOCK_TYPES):
                setattr(module, name, blocking.RLock())
            for real, virtual in shims:
                if value is real:
                    setattr(module, name, virtual)
        for function in functions_of(module):
            _rebind_defaults(function, shims)
    vars(filesystem).update({name: getattr(files, name) for name in filesystem.CALLS})
    _refuse_the_rest()
    # Servers keep connections in sets, whose order must not depend on addresses.
    Connection.__hash__ = SimFuture.__hash__  # type: ignore[assignment]


def _refuse_the_rest() -> None:
    """Make real threads and real chance fail where they are used: what decides by them differs from run to run."""

    def refused(*_: object, **__: object) -> Any:
        raise AssertionError("real threads and chance have no place in a world: bind the name that led here")

    threading.Thread.start = refused  # type: ignore[method-assign]
    os.urandom = refused
    vars(random)["_urandom"] = refused  # of `secrets`


def functions_of(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions of a module and the methods of its classes."""
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    members = [member for value in own if isinstance(value, type) for member in vars(value).values()]
    for value in [*own, *members]:
        found = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(found, types.FunctionType):
            yield found


def _rebind_defaults(function: types.FunctionType, shims: Sequence[tuple[object, object]]) -> None:
    """Bind a function's default arguments, which keep what a name meant when the module was imported."""

    def bound(value: object) -> object:
        return next((virtual for real, virtual in shims if value is real), value)

    if function.__defaults__:
        function.__defaults__ = tuple(map(bound, function.__defaults__))
    if function.__kwdefaults__:
        function.__kwdefaults__ = {name: bound(value) for name, value in function.__kwdefaults__.items()}


def _copy(module: types.ModuleType, **changed: Any) -> types.ModuleType:
    shim = types.ModuleType(module.__name__)
    shim.__dict__.update(vars(module))
    shim.__dict__.update(changed)
    return shim


def _shims(scheduler: Scheduler, network: Network, files: HostFiles) -> list[tuple[object, object]]:
    """Return the pairs of original and replacement."""
    clock = _clock(scheduler, network)
    chance = random.Random(scheduler.random.random())

    class Seeded(random.Random):
        """`random.Random`, seeded by the world where the caller gives no seed."""

        def __init__(self, seed: Any = None) -> None:
            super().__init__(chance.random() if seed is None else seed)

    bounded = {name: getattr(chance, name) for name in ("random", "randint", "uniform", "choice", "shuffle", "sample")}
    own = {
        "getpid": lambda: 0 if scheduler.current is None else scheduler.current.number,
        "urandom": chance.randbytes,
        "open": files.open_plain,
        "close": files.close,
    }
    token_bytes = chance.randbytes
    token_clocks: dict[SimProcess | None, TokenClock] = {}

    def token_clock_here() -> TokenClock:
        if scheduler.current not in token_clocks:
            token_clocks[scheduler.current] = TokenClock()
        return token_clocks[scheduler.current]

    changed: dict[types.ModuleType, dict[str, Any]] = {
        time: clock,
        random: {"Random": Seeded, **bounded},
        secrets: {"token_bytes": token_bytes, "token_hex": lambda count=32: token_bytes(count).hex()},
        uuid: {"uuid4": lambda: uuid.UUID(bytes=token_bytes(16), version=4)},
        threading: {
            "Thread": blocking.Thread,
            "Lock": blocking.Lock,
            "RLock": blocking.RLock,
            "Event": blocking.Event,
            "get_ident": blocking.get_ident,
            "current_thread": blocking.get_ident,
            "main_thread": lambda: 0,
        },
        queue: {"SimpleQueue": blocking.SimpleQueue},
        concurrent.futures: {"ThreadPoolExecutor": blocking.ThreadPoolExecutor},
        os: own,
    }
    return [
        (token_clock, token_clock_here),
        (since_boot_ns, clock["monotonic_ns"]),
        *((module, _copy(module, **names)) for module, names in changed.items()),
        # What a module imports by name is bound as well: ``from uuid import uuid4``.
        *((getattr(module, name), virtual) for module, names in changed.items() for name, virtual in names.items()),
    ]


def _clock(scheduler: Scheduler, network: Network) -> dict[str, Any]:
    jumps, read_clock = network.clock_jump_s, scheduler.read_clock

    def wall_s() -> float:
        process = scheduler.current
        return WALL_S + read_clock() + (0.0 if process is None else jumps.get(process.host, 0.0))

    def sleep(delay_s: float) -> None:
        thread = scheduler.thread
        assert thread is not None, "an event loop sleeps"
        thread.sleep(delay_s)

    def nanoseconds() -> int:
        return int(read_clock() * 1e9)

    return {
        "monotonic": read_clock,
        "monotonic_ns": nanoseconds,
        "perf_counter": read_clock,
        "perf_counter_ns": nanoseconds,
        "clock_gettime_ns": lambda _: nanoseconds(),
        "time": wall_s,
        "time_ns": lambda: int(wall_s() * 1e9),
        "sleep": sleep,
    }


class HostFiles:
    """The host's files, each open one owned by a process: its kernel closes them when it is killed."""

    def __init__(self, scheduler: Scheduler, system: object) -> None:
        """One for all processes of a world, above the operating system or virtual disks."""
        self._scheduler = scheduler
        self._owners: dict[int, SimProcess] = {}
        """Whose a descriptor is: also one that is closed while a claim looks into the process's log."""
        self._open, self._close, self._sync, self._pread = (
            getattr(system, name) for name in ("open", "close", "fdatasync", "pread")
        )
        for name in filesystem.CALLS:
            if not hasattr(self, name):
                setattr(self, name, getattr(system, name))

    def open(self, path: filesystem.Place, flags: int, mode: int = 0o777) -> int:
        """As `os.open`, for what goes through `raylog.storage.filesystem`."""
        return self._owned(path, self._open(path, flags, mode))

    def open_plain(self, path: filesystem.Place, flags: int, mode: int = 0o777) -> int:
        """As `os.open`, for what calls `os` itself: never on a virtual disk, which `os.write` does not know."""
        return self._owned(path, os.open(path, flags, mode))

    def _owned(self, path: filesystem.Place, descriptor: int) -> int:
        if self._scheduler.current is not None and path != os.devnull:
            self._scheduler.current.descriptors[descriptor] = None
            self._owners[descriptor] = self._scheduler.current
        return descriptor

    def close(self, descriptor: int) -> None:
        """As `os.close`."""
        owner = self._owners.pop(descriptor, None)
        if owner is not None:
            owner.descriptors.pop(descriptor, None)
        self._close(descriptor)

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """As `os.pread`: the page is rarely not in memory, and time passes within the turn that reads it."""
        self._scheduler.spend_reading()
        return bytes(self._pread(descriptor, count, offset))

    def fdatasync(self, descriptor: int) -> None:
        """As `os.fdatasync`; takes its time in a thread."""
        thread = self._scheduler.thread
        if thread is not None:
            thread.sleep(self._scheduler.between(0.000_1, 0.001_5))
        self._sync(descriptor)
