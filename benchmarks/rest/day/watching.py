"""Readings of a cluster over the day: the states of its replicas, CPU, memory. May touch: /proc, a socket, the clock.

The states come from the metrics page of the broker, which answers for replicas that doze or sleep, and wakes none.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from benchmarks.job import Outcome
from benchmarks.rest.measure import CpuUse, Key, Reading, below, is_of_ray, read_pss, split
from benchmarks.rest.readings import TICKS_PER_S, command, pss_text, stats

REPLICA: Final = "ray::Replica "
ROLE: Final = re.compile(r'^raylog_replicas\{[^}]*role="(\w+)"[^}]*\} (\d+)', re.MULTILINE)
DOZING: Final = re.compile(r"^raylog_replicas_dozing\{[^}]*\} (\d+)", re.MULTILINE)
ASLEEP: Final = "asleep"
SCRAPE_S: Final = 10.0
LOOK_S: Final = 0.1


def states(page: str) -> dict[str, int]:
    """How many replicas are awake, dozing and asleep by a page of metrics; those that are starting are awake. Pure."""
    roles = {role: int(count) for role, count in ROLE.findall(page)}
    dozing = sum(map(int, DOZING.findall(page)))
    asleep = roles.pop(ASLEEP, 0)
    return {"awake": max(0, sum(roles.values()) - dozing), "dozing": dozing, ASLEEP: asleep}


def scrape(port: int) -> dict[str, int]:
    """The states on this metrics page. Raises OSError when it does not open soon: it does so after its broker."""
    deadline_s = time.monotonic() + SCRAPE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_S) as answer:
                return states(answer.read().decode())
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(LOOK_S)


class Watch:
    """Reads the processes below this one, without those that are no part of the server."""

    def __init__(self, not_servers: Collection[int], port: int, pool: ThreadPoolExecutor) -> None:
        """`port`: of the metrics page, which is read in `pool`, because an answer may take seconds."""
        self._not_servers = not_servers
        self._port, self._pool = port, pool
        self._scraped: Future[dict[str, int]] = pool.submit(scrape, port)
        self._commands: dict[Key, Sequence[str]] = {}
        self._readings = self._read()
        self._used, self._began_s = CpuUse(self._readings), time.monotonic()

    def look(self) -> None:
        """Read the CPU time. What a process uses between the last reading and its end is lost."""
        self._readings = self._read()
        self._used.add(self._readings)

    def sample(self) -> Outcome:
        """Look, and return memory (MB) as of now, cores since the last sample, and states as of then.

        Raises OSError when the metrics were not available.
        """
        self.look()
        now_s = time.monotonic()
        per_core = TICKS_PER_S * (now_s - self._began_s)
        ours, of_ray = split(self._used.ticks(), self._commands)
        found: Outcome = {"cpu_cores": round(ours / per_core, 4), "ray_cpu_cores": round(of_ray / per_core, 4)}
        self._used, self._began_s = CpuUse(self._readings), now_s
        found |= self._scraped.result(2 * SCRAPE_S)
        self._scraped = self._pool.submit(scrape, self._port)
        return found | self._memory()

    def _memory(self) -> Outcome:
        sums = {False: 0, True: 0}
        for reading in self._readings:
            sums[is_of_ray(self._commands[reading.key])] += read_pss(pss_text(reading.pid))
        return {"memory_mb": round(sums[False] / 1e6, 1), "ray_memory_mb": round(sums[True] / 1e6, 1)}

    def _read(self) -> list[Reading]:
        readings = below(stats(), os.getpid(), self._not_servers)
        for reading in readings:
            if not self._commands.get(reading.key, ("",))[0].startswith(REPLICA):
                words = command(reading.pid)  # again: a worker gets its title after its start
                if words[0] or reading.key not in self._commands:
                    self._commands[reading.key] = words
        return readings
