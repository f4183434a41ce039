"""Readings of the server's processes, over a window at rest. May touch: /proc, the clock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from benchmarks.job import Outcome
from benchmarks.rest.measure import CpuUse, Key, Reading, below, is_of_ray, read_pss, read_stat, split

PROC: Final = Path("/proc")
SAMPLE_S: Final = 1.0
"""Between two readings. What a process uses after its last one is lost, and so is one that lives between two."""
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def _read(pid: int, name: str) -> str:
    """A file of a process; "" when it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return (PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    return ""


def stats() -> Iterable[Reading]:
    """All processes of the machine."""
    for name in os.listdir(PROC):
        if name.isdecimal() and (text := _read(int(name), "stat")):
            yield read_stat(text)


def command(pid: int) -> list[str]:
    """Title or words of a process; [""] when it has ended."""
    return _read(pid, "cmdline").split("\0")


def state(pid: int) -> str:
    """The letter of its state, such as T when it is stopped; "" when it has ended."""
    return _read(pid, "stat").rpartition(")")[2].strip()[:1]


def pss_text(pid: int) -> str:
    """What `measure.read_pss` reads; "" when the process has ended."""
    return _read(pid, "smaps_rollup")


def at_rest(window_s: float, not_servers: Collection[int], check: Callable[[], None]) -> Outcome:
    """CPU time over a window, then memory, of all processes below this one but `not_servers`; Ray's own apart.

    `check` is called between the readings of memory, each of which may take milliseconds, and may raise.
    """

    def servers() -> list[Reading]:
        return below(stats(), os.getpid(), not_servers)

    first = servers()
    used, began_s = CpuUse(first), time.monotonic()
    commands: dict[Key, list[str]] = {reading.key: command(reading.pid) for reading in first}
    last = first
    while (left_s := began_s + window_s - time.monotonic()) > 0:
        time.sleep(min(SAMPLE_S, left_s))
        last = servers()
        commands |= {key: command(key[0]) for key in used.add(last)}
    seconds = time.monotonic() - began_s
    for reading in last:  # again: a worker gets its title after its start
        commands[reading.key] = command(reading.pid) or commands[reading.key]
    ours, of_ray = split(used.ticks(), commands)
    found: Outcome = {"seconds": seconds, "cpu_cores": ours / TICKS_PER_S / seconds}
    mine: list[int] = []
    rays: list[int] = []
    for reading in last:
        check()
        (rays if is_of_ray(commands[reading.key]) else mine).append(read_pss(pss_text(reading.pid)))
    found |= {"memory_mb": sum(mine) / 1e6, "processes": len(mine)}
    if rays:
        cores = of_ray / TICKS_PER_S / seconds
        found |= {"ray_memory_mb": sum(rays) / 1e6, "ray_processes": len(rays), "ray_cpu_cores": cores}
    return found
