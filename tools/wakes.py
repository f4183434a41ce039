"""What wakes leave behind: memory of Raylog's processes and of Ray's, and log files, over thousands of wakes.

    python -m tools.wakes --wakes 10000 --rows 30

Starts a Ray with one broker, and writes a record to each partition of several topics as soon as it sleeps, which it
does after a second without use: so many wake at once that the processors decide how long it takes. Prints a row each
thirtieth of them: how much memory each process shares with no other, in kB, the files in the folder of Ray's logs, and
the median time of a wake. At the end there is a line for each process: by how much it grew with each wake in the first
third of the rows and in the last one, which says whether it is flat, bounded, or grows without a limit. The first third
holds what each process loads once.
``make wakes`` runs it; ``tests/cluster/sleep/test_many_wakes.py`` does in miniature.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ray

import raylog
from raylog.actors.naming import REPLICA_PREFIX
from raylog.launch.cluster import Cluster

TOPIC: Final = "wakes"
TOPICS: Final = 3
PARTITIONS: Final = 20
"""Of each topic."""
SLEEP_AFTER_MS: Final = "1000"
DEADLINE_S: Final = 60.0
LOOK_S: Final = 0.05
LEAST_ROWS: Final = 6
FILES: Final = "log files"
LOG_KB: Final = "log kB"
SHOWN: Final = {
    "broker": "ray::Broker",
    "controller": "ray::Controller",
    "maker": "ray::Maker",
    "store": "gcs/gcs_server",
    "raylet": "raylet/raylet",
    "dashboard agent": "ray::DashboardAgent",
    "runtime agent": "ray::RuntimeEnvAgent",
    "log monitor": "log_monitor.py",
    "monitor": "monitor.py",
    "dashboard": "dashboard/dashboard.py",
    "fork server": "fork_server import main",
}
"""What the titles of the processes contain; the first that fits counts."""
FLAT_KB: Final = 0.3
"""Growth with a wake that 10,000 wakes do not show: 3 MB."""
BOUNDED: Final = 0.2
"""Growth of the last third, as a part of that of the first third, by which a process is on its way to a limit."""


@dataclass(frozen=True, slots=True)
class Row:
    """What there was after so many wakes."""

    wakes: int
    kept: dict[str, int]
    """By process what is its own, in kB, those that do not run are missing; and FILES and LOG_KB of the log folder."""
    wake_ms: float
    """Median of the wakes since the row before."""


class Wakes:
    """Wakes the partitions of some topics."""

    def __init__(
        self, producer: raylog.Producer, partitions: int = PARTITIONS, topics: Sequence[str] = (TOPIC,)
    ) -> None:
        """Make the topics; ``partitions`` of each."""
        self.count = 0
        """Records that were written, each of which has woken a partition."""
        self.took_ms: list[float] = []
        self._producer = producer
        self._places = [(topic, number) for topic in topics for number in range(partitions)]
        with raylog.Admin() as admin:
            for topic in topics:
                admin.create_topic(topic, partitions, 1, config={"replica.sleep.after.ms": SLEEP_AFTER_MS})

    def wake(self) -> int:
        """Wake the next partition, once it sleeps; returns which one it is."""
        topic, partition = self._places[self.count % len(self._places)]
        wait_asleep(topic, partition)
        began = time.monotonic()
        self.send()[0].result(DEADLINE_S)
        self.took_ms.append((time.monotonic() - began) * 1000)
        return partition

    def wake_many(self, count: int) -> None:
        """Wake so many partitions, each as soon as it sleeps; raises TimeoutError when none does for too long."""
        sent: dict[tuple[str, int], raylog.SendFuture] = {}
        left = count
        moved = time.monotonic()
        while left or sent:
            answered = [place for place, future in sent.items() if future.done()]
            for place in answered:
                sent.pop(place).result(0)
            awake = awake_partitions()
            for place in [place for place in self._places if place not in sent and place not in awake][:left]:
                sent[place] = self._send_timed(*place)
                left -= 1
                moved = time.monotonic()
            if time.monotonic() > moved + DEADLINE_S:
                raise TimeoutError(f"no partition was woken for {DEADLINE_S} s; {len(sent)} have not answered")
            time.sleep(LOOK_S)

    def _send_timed(self, topic: str, partition: int) -> raylog.SendFuture:
        began = time.monotonic()
        future = self._producer.send(topic, b"x", partition=partition)
        future.add_done_callback(lambda _: self.took_ms.append((time.monotonic() - began) * 1000))
        self.count += 1
        return future

    def send(self, records: int = 1) -> list[raylog.SendFuture]:
        """Write a record to each of the next partitions, and wait for none."""
        return [self._send_timed(*self._places[self.count % len(self._places)]) for _ in range(records)]


def measure(wakes: Wakes, count: int, rows: int) -> Iterator[Row]:
    """Wake partitions so often, and yield what there is after each part of them."""
    for _ in range(rows):
        wakes.took_ms.clear()
        wakes.wake_many(count // rows)
        yield Row(wakes.count, {**memory_below(os.getpid()), **log_folder()}, statistics.median(wakes.took_ms))


def growth(rows: Sequence[Row], name: str) -> float:
    """Return by how much something grew with each wake: the slope of the line through the rows."""
    found = [(row.wakes, row.kept[name]) for row in rows if name in row.kept]
    if len(found) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*found, strict=True)).slope


def verdict(first: float, last: float) -> str:
    """Return whether what grew by so much a wake, first and last, is flat, bounded, or grows without a limit."""
    if last <= FLAT_KB:
        return "flat"
    return "bounded" if last <= first * BOUNDED else "GROWS"


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return a line for each process, and for the log folder."""
    third = len(rows) // 3
    lines = []
    for name in dict.fromkeys(name for row in rows for name in row.kept):
        first, last = growth(rows[:third], name), growth(rows[-third:], name)
        lines.append(f"{name:16} {first:8.2f} a wake at first, {last:8.2f} at last: {verdict(first, last)}")
    return lines


def log_folder() -> dict[str, int]:
    """Return how many files Ray's log folder has, and how many kB these have."""
    node = ray._private.worker._global_node
    files = kb = 0
    for folder, _, names in os.walk(node.get_logs_dir_path() if node is not None else ""):
        for name in names:
            try:
                kb += os.lstat(os.path.join(folder, name)).st_blocks // 2
            except OSError:
                continue  # it was removed
            files += 1
    return {FILES: files, LOG_KB: kb}


def awake_partitions() -> set[tuple[str, int]]:
    """Return topic and partition of each replica that has an actor."""
    found = set()
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["name"].startswith(REPLICA_PREFIX):
            topic, _, partition = entry["name"].removeprefix(REPLICA_PREFIX).split(":")[0].rpartition("-")
            found.add((topic, int(partition)))
    return found


def wait_asleep(topic: str, partition: int) -> None:
    """Wait until the replica of a partition has no actor; raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE_S
    while (topic, partition) in awake_partitions():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic}-{partition} is awake after {DEADLINE_S} s without use")
        time.sleep(LOOK_S)


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
    """Return the memory of a process that it shares with no other, in kB; 0 when it has ended.

    Only what it has written: the kernel takes the pages of programs and libraries away, and reads them again.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty", "Swap:")))


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
    """Read the command line, measure, print rows and verdicts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wakes", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=30)
    given = parser.parse_args()
    if given.rows < LEAST_ROWS or given.wakes < given.rows:
        parser.error(f"--rows is at least {LEAST_ROWS}: thirds are compared; and --wakes at least --rows.")
    rows: list[Row] = []
    began = time.monotonic()
    with cluster_of_its_own(), raylog.Producer() as producer:
        for row in measure(
            Wakes(producer, topics=[f"{TOPIC}{number}" for number in range(TOPICS)]), given.wakes, given.rows
        ):
            rows.append(row)
            shown = "  ".join(f"{name} {kept}" for name, kept in row.kept.items())
            print(
                f"{row.wakes:6} wakes, {time.monotonic() - began:5.0f} s  {shown}  {row.wake_ms:.0f} ms a wake",
                flush=True,
            )
    print("\n".join(verdicts(rows)), flush=True)


if __name__ == "__main__":
    main()
