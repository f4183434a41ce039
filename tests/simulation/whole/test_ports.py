"""No shipped module in a world keeps a real clock: not by a name, an attribute of a class, or a default argument."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.whole.features import plan_of
from tests.simulation.whole.plan import WHOLE
from tests.simulation.whole.ports import functions_of, shipped_modules
from tests.simulation.whole.world import World

pytestmark = pytest.mark.sim

CLOCKS = (
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "clock_gettime_ns",
    "time",
    "time_ns",
    "sleep",
)
REAL = [getattr(time, name) for name in CLOCKS]


def real_clocks() -> Iterator[str]:
    """Yield where a shipped module has one."""
    for module in shipped_modules():
        found = dict(vars(module))
        own = [value for value in found.values() if isinstance(value, type) and value.__module__ == module.__name__]
        for each in own:
            found |= {f"{each.__name__}.{name}": value for name, value in vars(each).items()}
        for function in functions_of(module):
            defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            found |= {f"{function.__qualname__}({number})": value for number, value in enumerate(defaults)}
        for name, value in found.items():
            if (value.func if isinstance(value, partial) else value) in REAL:
                yield f"{module.__name__}.{name}"


def left_in_a_world(root: str) -> None:
    """Print what a world has left, in a process that ends with it."""
    World(1, plan_of(WHOLE, 1, [], {}), Path(root))
    print(json.dumps(list(real_clocks())))


def test_a_world_leaves_no_real_clock(tmp_path: Path) -> None:
    code = f"from tests.simulation.whole.test_ports import left_in_a_world as look; look({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_outside_of_a_world_there_are_real_clocks_of_each_kind() -> None:
    found = [name for name in real_clocks() if name.startswith(("raylog.actors.clock", "raylog.actors.careful_clock"))]
    assert "raylog.actors.clock.since_boot_ns" in found
    assert "raylog.actors.careful_clock.CarefulClock.__init__(1)" in found
