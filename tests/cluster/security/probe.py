"""A process beside an attack: what other clients wait for, whether the node is healthy, and how large processes become.

`python -m tests.cluster.security.probe` reads one line of JSON, looks until its standard input ends, and prints a line
of JSON. It is a process of its own, so that the attacker's work does not count as a wait.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from raylog.base.errors import RaylogError
from raylog.rpc import connect

PAUSE_S = 0.05
SAMPLE_S = 0.03
WARM = 20
"""Requests before the attack may begin."""
ACTORS = re.compile(r"^ray::(Replica|Broker|Controller|GroupCoordinator|TransactionCoordinator|.*[Cc]oordinator)")
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE_S = 5.0
"""A wait that counts in full, whatever the process did meanwhile."""


def processes(folder: str) -> dict[int, str]:
    """The actors' processes of the Ray that has its files in this folder, by id."""
    found = {}
    for path in Path("/proc").iterdir():
        with suppress(OSError, UnicodeDecodeError):
            if path.name.isdigit() and f"RAY_TMPDIR={folder}".encode() in (path / "environ").read_bytes():
                title = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if ACTORS.match(title):
                    found[int(path.name)] = title
    return found


def worked_s(pid: int) -> float:
    """The processor time that a process has used since it began, seconds; 0 = it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    except (OSError, IndexError):
        return 0.0


def waited_s(elapsed_s: float, of_process_s: float) -> float:
    """The wait that counts: the work that a process did first, not the time in which others had the processor.

    A wait in which the process does little is one for the machine, up to `IDLE_S`: a longer one is a fault too.
    """
    return min(elapsed_s, of_process_s) if elapsed_s < IDLE_S else elapsed_s


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 = it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


class Watch:
    """What is seen."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.waits: dict[str, float] = {}
        self.errors: list[str] = []
        self.count = 0
        self.begun = asyncio.Event()
        self.first: dict[int, int] = {}
        self.peak: dict[int, int] = {}
        self.titles = processes(plan["folder"])

    def _process_of(self, name: str) -> int:
        """The process that answers these requests; 0 = none is known."""
        wanted = {"t": "Replica t-", "calm": "Replica calm-", "coordinator": "ordinator"}
        part = wanted.get(name.partition(",")[0], "Broker ")
        return next((pid for pid, title in self.titles.items() if part in title), 0)

    async def keep(self, name: str, attempt: Callable[[], Any]) -> None:
        """Repeat a request, and note its longest answer, as the processor time of the process that answers."""
        pid = self._process_of(name)
        while True:
            began_s, before_s = time.monotonic(), worked_s(pid)
            try:
                await attempt()
            except (RaylogError, OSError, EOFError, TimeoutError) as error:
                self.errors.append(f"{name}: {error!r:.200}")
            wait_s = waited_s(time.monotonic() - began_s, worked_s(pid) - before_s)
            self.waits[name] = max(self.waits.get(name, 0.0), wait_s)
            self.count += 1
            if self.count >= WARM:
                self.begun.set()
            await asyncio.sleep(PAUSE_S)

    async def call(self, name: str, host: str, port: int, method: str, args: list[Any]) -> None:
        """One of the other clients, which has its connection."""
        connection = await connect(host, port, secret=bytes.fromhex(self.plan["secret"]), timeout_s=20)
        await self.keep(name, lambda: connection.call(method, args, timeout_s=20))

    async def newcomer(self, name: str, host: str, port: int, method: str, args: list[Any]) -> None:
        """A client that connects for each request."""

        async def once() -> None:
            connection = await connect(host, port, secret=bytes.fromhex(self.plan["secret"]), timeout_s=20)
            try:
                await connection.call(method, args, timeout_s=20)
            finally:
                connection.abort("done")

        await self.keep(name, once)

    async def health(self) -> None:
        """A liveness probe."""

        async def get() -> None:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.plan["metrics_port"])
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                line = await reader.readline()
                writer.close()
                if b" 200 " not in line:
                    raise EOFError(f"/healthz answered {line!r}")

        await self.keep("healthz", get)

    async def sizes(self) -> None:
        """The memory of each process that was there at the beginning."""
        self.first = self.peak = {pid: rss_bytes(pid) for pid in self.titles}
        self.peak = dict(self.first)
        while True:
            for pid in self.titles:
                self.peak[pid] = max(self.peak[pid], rss_bytes(pid))
            await asyncio.sleep(SAMPLE_S)

    def found(self) -> dict[str, Any]:
        """What was seen, as JSON holds it."""
        alive = {pid for pid in self.titles if rss_bytes(pid) > 0}
        return {
            "waits": self.waits,
            "errors": self.errors,
            "count": self.count,
            "grown": {self.titles[pid]: (self.peak[pid] - self.first[pid]) / 2**20 for pid in self.titles},
            "ended": [title for pid, title in self.titles.items() if pid not in alive],
        }


async def main() -> None:
    """Look until the standard input ends."""
    loop = asyncio.get_running_loop()
    watch = Watch(json.loads(await loop.run_in_executor(None, sys.stdin.readline)))
    jobs = [watch.sizes(), watch.health()]
    for name, (host, port, method, args) in watch.plan["calls"].items():
        jobs += [
            watch.call(name, host, port, method, args),
            watch.newcomer(f"{name}, newcomer", host, port, method, args),
        ]
    tasks = [asyncio.create_task(job) for job in jobs]
    await watch.begun.wait()
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(watch.found()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
