"""What wakes leave behind: memory of Raylog's processes and of Ray's, and log files, over thousands of wakes.

    python -m tools.wakes --wakes 10000 --rows 10

Starts a Ray with one broker, and writes one record after the other to partitions that sleep after a second, each of
which wakes for it. Prints a row each tenth of them: how much memory each process shares with no other, in kB, the files
in the folder of Ray's logs, and the median time of a wake. The first row holds what each process loads once.
``make wakes`` runs it; ``tests/cluster/sleep/test_many_wakes.py`` does in miniature.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ray

import raylog
from raylog.actors.naming import REPLICA_PREFIX
from raylog.launch.cluster import Cluster

TOPIC: Final = "wakes"
PARTITIONS: Final = 40
SLEEP_AFTER_MS: Final = "1000"
STORE_BYTES: Final = 80 * 2**20
DEADLINE_S: Final = 60.0
SHOWN: Final = {
    "broker": "ray::Broker",
    "controller": "ray::Controller",
    "maker": "ray::Maker",
    "store": "gcs_server",
    "raylet": "raylet/raylet",
    "agent": "agent.py",
}
"""What the titles of the processes contain."""


@dataclass(frozen=True, slots=True)
class Row:
    """What there was after so many wakes."""

    wakes: int
    own_kb: dict[str, int]
    """By process; those that do not run are missing."""
    log_files: int
    wake_ms: float
    """Median of the wakes since the row before."""


class Wakes:
    """Wakes the partitions of a topic, one after the other."""

    def __init__(self, producer: raylog.Producer, partitions: int = PARTITIONS) -> None:
        """Make the topic."""
        self.count = 0
        """Records that were written, each of which has woken a partition."""
        self.took_ms: list[float] = []
        self._producer = producer
        self._partitions = partitions
        with raylog.Admin() as admin:
            admin.create_topic(TOPIC, partitions, 1, config={"replica.sleep.after.ms": SLEEP_AFTER_MS})

    def wake(self) -> int:
        """Wake the next partition, once it sleeps; returns which one it is."""
        partition = self.count % self._partitions
        wait_asleep(partition)
        began = time.monotonic()
        self.send()[0].result(DEADLINE_S)
        self.took_ms.append((time.monotonic() - began) * 1000)
        return partition

    def send(self, records: int = 1) -> list[raylog.SendFuture]:
        """Write a record to each of the next partitions, and wait for none."""
        sent = []
        for _ in range(records):
            sent.append(self._producer.send(TOPIC, b"x", partition=self.count % self._partitions))
            self.count += 1
        return sent


def measure(wakes: Wakes, count: int, rows: int) -> Iterator[Row]:
    """Wake partitions so often, and yield what there is after each part of them."""
    for _ in range(rows):
        wakes.took_ms.clear()
        for _ in range(count // rows):
            wakes.wake()
        yield Row(wakes.count, memory_below(os.getpid()), log_files(), statistics.median(wakes.took_ms))


def log_files() -> int:
    """Return how many files Ray's log folder has."""
    node = ray._private.worker._global_node
    return 0 if node is None else sum(1 for file in Path(node.get_logs_dir_path()).rglob("*") if file.is_file())


def wait_asleep(partition: int) -> None:
    """Wait until the replica of a partition has no actor; raises TimeoutError."""
    prefix = f"{REPLICA_PREFIX}{TOPIC}-{partition}:"
    deadline = time.monotonic() + DEADLINE_S
    while any(entry["name"].startswith(prefix) for entry in ray.util.list_named_actors(all_namespaces=True)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"partition {partition} is awake after {DEADLINE_S} s without use")
        time.sleep(0.05)


def processes_below(root: int) -> dict[int, str]:
    """Return the title of each process below one."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text()
                titles[int(folder.name)] = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue  # it has ended
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for pid, title in titles.items():
        above = parents[pid]
        while above in parents and above != root:
            above = parents[above]
        if above == root:
            found[pid] = title
    return found


def memory_below(root: int) -> dict[str, int]:
    """Return the memory of the processes below one that are shown, in kB; of several of a kind the sum."""
    found: dict[str, int] = {}
    for pid, title in processes_below(root).items():
        name = next((name for name, part in SHOWN.items() if part in title), None)
        if name is not None:
            found[name] = found.get(name, 0) + own_kb(pid)
    return found


def own_kb(pid: int) -> int:
    """Return the memory of a process that it shares with no other, in kB; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@contextmanager
def cluster_of_its_own() -> Iterator[Cluster]:
    """A Ray with one broker, in a folder that is removed."""
    folder = Path(tempfile.mkdtemp(prefix="wk", dir="/tmp"))  # a short path, because it contains sockets
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        with raylog.start(folder / "data", brokers=1, address="local") as cluster:
            yield cluster
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Read the command line, measure, print rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wakes", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10)
    given = parser.parse_args()
    with cluster_of_its_own(), raylog.Producer() as producer:
        before: Row | None = None
        for row in measure(Wakes(producer), given.wakes, given.rows):
            shown = "  ".join(f"{name} {kb}" for name, kb in row.own_kb.items())
            print(f"{row.wakes:6} wakes  {shown}  files {row.log_files}  {row.wake_ms:.0f} ms a wake", flush=True)
            if before is not None:
                apart = row.wakes - before.wakes
                each = {name: (kb - before.own_kb.get(name, kb)) / apart for name, kb in row.own_kb.items()}
                print("       kB a wake:", "  ".join(f"{name} {kb:.1f}" for name, kb in each.items()), flush=True)
            before = row


if __name__ == "__main__":
    main()
