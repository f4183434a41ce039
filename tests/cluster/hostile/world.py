"""A cluster of real parts on a thread of this process, and what its clients leave behind: tasks, threads, sockets."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from raylog.client import runtime
from raylog.client.admin.admin import Admin
from raylog.client.bell import Bell
from raylog.client.runtime import Runtime
from raylog.client.spinlock import _all
from tests.cluster.local_cluster import LocalCluster
from tests.waiting import wait_for

NEXT_S = 5.0
"""A call after a strike answers within this time, on a loaded machine."""
PAUSE_S = 0.002
OF_CLIENTS = ("raylog-client", "raylog-worker", "queue-handler", "half")
CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


class World:
    """One broker, on a loop of its own."""

    def __init__(self, root: Path) -> None:
        self._runtime = Runtime()
        self._cluster = LocalCluster(root, brokers=1, config=CONFIG)
        self._count = 0

    def __enter__(self) -> Self:
        self._runtime.run(self._cluster.start(), 30)
        self.admin = Admin(**self.options)
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.close()
        self._runtime.run(self._cluster.stop(), 30)
        self._runtime.stop()

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of every client."""
        return self._cluster.clients()

    def topic(self, partitions: int = 1, **config: Any) -> str:
        """Create a topic that no other test uses."""
        self._count += 1
        name = f"t{self._count}"
        self.admin.create_topic(name, partitions, 1, config=config or None)
        return name

    def name(self) -> str:
        """A name that no other test uses, for a group."""
        self._count += 1
        return f"g{self._count}"


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The cluster of these tests."""
    with World(tmp_path_factory.mktemp("hostile")) as made, only_new_garbage():
        yield made


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Have the garbage collector look at what is made from here on: there is a collection behind each strike."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Remains:
    """What there is before clients are made, and must be again after they have ended."""

    def __init__(self) -> None:
        runtime.shared().run(_bell())
        self._threads = len(_threads())
        self._sockets = _sockets()
        self._tasks = _tasks()

    def check(self, place: str = "") -> None:
        """Wait until nothing is left that was not there before."""
        gc.collect()
        looks: dict[str, Callable[[], bool]] = {
            "the locks are free": lambda: all(hasattr(lock(), "free") for lock in list(_all.values()) if lock()),
            "the tasks have ended": lambda: len(_tasks()) <= len(self._tasks),
            "the sockets are closed": lambda: _sockets() <= self._sockets,
            "the threads have ended": lambda: len(_threads()) <= self._threads,
        }
        for what, holds in looks.items():
            tasks = [each.get_name() for each in _tasks()]
            wait_for(holds, f"{what}, after a strike in {place}: {tasks}", NEXT_S, PAUSE_S)


async def _bell() -> None:
    """Make the bell of the clients' loop, which the first record of a thread makes else, and which stays."""
    Bell.on_running_loop()


def _tasks() -> list[asyncio.Task[Any]]:
    return list(asyncio.all_tasks(runtime.shared().loop))


def _threads() -> list[threading.Thread]:
    """Those of clients, and of handlers: the cluster's come and go."""
    return [each for each in threading.enumerate() if each.name.startswith(OF_CLIENTS)]


def _sockets() -> int:
    """How many sockets the clients' loop watches: those of the cluster are on another one."""
    loop: Any = runtime.shared().loop
    return len(loop._selector.get_map())
