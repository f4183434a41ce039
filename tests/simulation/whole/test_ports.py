"""No shipped module in a world keeps a real clock, thread or source of chance, by whatever name.

Neither by an attribute of a class, nor by a default argument. What it reaches by another way fails.

The files that it opens by `os` are real ones, and those of `raylog.storage` are on the virtual disks.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import json
import os
import queue
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raylog.actors import notes
from raylog.actors.dozing import keeper
from raylog.storage import filesystem
from tests.simulation.whole.cluster import folder_of
from tests.simulation.whole.features import plan_of
from tests.simulation.whole.plan import DISK, WHOLE
from tests.simulation.whole.ports import functions_of, shipped_modules
from tests.simulation.whole.world import World

pytestmark = pytest.mark.sim

UNCERTAIN: dict[ModuleType, tuple[str, ...]] = {
    time: (
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "clock_gettime_ns",
        "time",
        "time_ns",
        "sleep",
    ),
    threading: (*threading.__all__, "_start_new_thread"),
    concurrent.futures: ("ThreadPoolExecutor", "ProcessPoolExecutor"),
    queue: ("SimpleQueue", "Queue", "LifoQueue", "PriorityQueue"),
    random: tuple(random.__all__),
    secrets: ("SystemRandom", "choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"),
    uuid: ("uuid1", "uuid4"),
    os: ("urandom", "getpid"),
}
"""What the standard library takes from outside of a program: time, chance, and the order in which threads run."""
REAL = [*UNCERTAIN, *(getattr(module, name) for module, names in UNCERTAIN.items() for name in names)]


def left_real() -> Iterator[str]:
    """Yield where a shipped module has such a thing."""
    for module in shipped_modules():
        found = dict(vars(module))
        own = [value for value in found.values() if isinstance(value, type) and value.__module__ == module.__name__]
        for each in own:
            found |= {f"{each.__name__}.{name}": value for name, value in vars(each).items()}
        for function in functions_of(module):
            defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            found |= {f"{function.__qualname__}({number})": value for number, value in enumerate(defaults)}
        for name, value in found.items():
            called = value.func if isinstance(value, partial) else value
            if any(called is real for real in REAL):
                yield f"{module.__name__}.{name}"


def left_in_a_world(root: str) -> None:
    """Print what a world has left, in a process that ends with it."""
    World(1, plan_of(WHOLE, 1, [], {}), Path(root))
    print(json.dumps(list(left_real())))


def escapes(root: str) -> None:
    """Print which ways to real threads and real chance are open in a world, in a process that ends with it."""
    World(1, plan_of(WHOLE, 1, [], {}), Path(root))
    ways: dict[str, Callable[[], object]] = {
        "pool": lambda: concurrent.futures.thread.ThreadPoolExecutor().submit(print),
        "thread": threading.Thread(target=print).start,
        "uuid": uuid.uuid4,
        "secret": secrets.token_hex,
    }
    print(json.dumps([name for name, way in ways.items() if not _fails(way)]))


def _fails(way: Callable[[], object]) -> bool:
    try:
        way()
    except AssertionError:
        return True
    return False


def written_on_virtual_disks(root: str) -> None:
    """Print what is found of files that shipped code writes to a virtual disk's folder, in a process that ends."""
    World(1, plan_of(DISK, 1, [], {}), Path(root))
    folder = folder_of(Path(root), 1)
    folder.mkdir(parents=True)
    shipped_os: Any = vars(notes)["os"]
    plain = shipped_os.open(folder / "plain", os.O_RDWR | os.O_CREAT, 0o600)
    size = shipped_os.write(plain, b"plain"), shipped_os.fstat(plain).st_size
    shipped_os.close(plain)
    line = f"{os.getpid()} {keeper.started_at(os.getpid())}\n"
    notes.written(folder / keeper.NOTE, line)
    notes.added(folder / keeper.NOTE, line)
    virtual = filesystem.open(folder / "virtual", os.O_RDWR | os.O_CREAT, 0o600)
    filesystem.close(virtual)
    continued = keeper.continue_noted(folder) == [os.getpid()] * 2
    print(json.dumps([size, continued, sorted(os.listdir(folder)), filesystem.listdir(folder)]))


def in_a_process(function: str, root: Path) -> Any:
    """Return what a function of this module prints of a world; its process ends with the world."""
    code = f"from tests.simulation.whole.test_ports import {function} as look; look({str(root)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_world_leaves_no_real_clock_thread_or_chance(tmp_path: Path) -> None:
    assert in_a_process("left_in_a_world", tmp_path) == []


def test_real_threads_and_chance_fail_in_a_world(tmp_path: Path) -> None:
    assert in_a_process("escapes", tmp_path) == []


def test_what_calls_os_itself_has_real_files_besides_virtual_disks(tmp_path: Path) -> None:
    size, continued, real, virtual = in_a_process("written_on_virtual_disks", tmp_path)
    assert size == [5, 5]
    assert continued, "the keeper does not find what its broker has noted"
    assert real == [keeper.NOTE, "plain"]
    assert virtual == ["virtual"]


def test_outside_of_a_world_there_are_real_ones_of_each_kind() -> None:
    found = set(left_real())
    assert found >= {
        "raylog.actors.clock.since_boot_ns",
        "raylog.actors.careful_clock.CarefulClock.__init__(1)",
        "raylog.actors.replica.bodies.ThreadPoolExecutor",
        "raylog.storage.log.checkpoints.uuid4",
    }
