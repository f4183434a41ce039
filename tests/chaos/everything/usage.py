"""What the processes below this one use, taken from outside. Reads ``/proc``; calls actors of Ray for their tasks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.chaos import sight
from tools.wakes import FILES, LOG_KB, log_folder, own_kb, processes_below

CLIENT: Final = "client"
"""This process: the guests, and the journal, which grows."""
KINDS: Final = {
    "spare": r"ray::Replica spare",
    "replica": r"ray::Replica ",
    "broker": r"ray::Broker ",
    "controller": r"ray::Controller",
    "group coordinator": r"ray::Group",
    "transaction coordinator": r"ray::Transaction",
    "maker": r"ray::Maker",
    "copier": r"ray::CopyWorker",
    "relay": r"raylog outbox run",
    "store": r"gcs/gcs_server",
    "raylet": r"raylet/raylet",
    "agent": r"ray::(Dashboard|RuntimeEnv)Agent",
    "log monitor": r"log_monitor\.py",
    "monitor": r"/monitor\.py",
    "fork server": r"fork_server import main",
}
"""Patterns of the titles of processes; the first that fits counts."""
OTHER: Final = "other"
TASKS_S: Final = 10.0
ACTORS: Final = ("replica:", "broker-", "controller", "group-coordinator-", "transaction-coordinator-")


class Used(msgspec.Struct, frozen=True, gc=False):
    """What a process uses. ``own_kb``: memory that it shares with no other, and has written."""

    own_kb: int
    descriptors: int
    threads: int
    tasks: int | None = None
    """Of its event loop; None = not known."""


class Sample(msgspec.Struct, frozen=True):
    """All processes at one moment."""

    at_s: float
    processes: dict[str, Used]
    """By kind, title and process id: ``replica|Replica jobs-0 broker 1|4711``."""
    files: dict[str, int]
    """Files and kB of Ray's log folder, and kB of the brokers' data."""


def kind_of(title: str) -> str:
    """The kind of a process."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, title)), OTHER)


def take(at_s: float, data: Path) -> Sample:
    """Look at every process below this one, and at itself."""
    tasks = _tasks()
    found: dict[str, Used] = {}
    for pid, title in [(os.getpid(), CLIENT), *processes_below(os.getpid()).items()]:
        kind = CLIENT if title == CLIENT else kind_of(title)
        used = _used(pid, tasks.get(pid))
        if used is not None and title:
            found[f"{kind}|{_short(title)}|{pid}"] = used
    logs = log_folder()
    return Sample(at_s, found, {FILES: logs[FILES], LOG_KB: logs[LOG_KB], "data kB": _size_kb(data)})


def _short(title: str) -> str:
    """A title that stays the same: brokers show how many of their replicas rest."""
    return title.removeprefix("ray::").split(" (")[0][:60].strip()


def _used(pid: int, tasks: int | None) -> Used | None:
    folder = Path(f"/proc/{pid}")
    try:
        descriptors = len(os.listdir(folder / "fd"))
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return None  # it has ended
    threads = next((int(line.split()[1]) for line in lines if line.startswith("Threads:")), 0)
    return Used(own_kb(pid), descriptors, threads, tasks)


def _size_kb(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks
            except OSError:
                continue  # it was removed
    return total // 2


def _tasks() -> dict[int, int]:
    """How many tasks the event loop of each actor has that answers, by process id."""
    import ray

    calls: list[Any] = []
    for name in sight.actor_names(*ACTORS):
        try:
            calls.append(sight.handle_of(name).__ray_call__.remote(_count_tasks))
        except ValueError:
            continue  # it has ended
    ready, _ = ray.wait(calls, num_returns=len(calls), timeout=TASKS_S) if calls else ([], [])
    found = {}
    for answer in ready:
        try:
            pid, count = ray.get(answer)
        except ray.exceptions.RayError:
            continue  # it has ended meanwhile
        found[pid] = count
    return found


def _count_tasks(actor: Any) -> tuple[int, int]:
    """Runs in the actor, in a thread without a loop: it is pickled by its value, and counts tasks of all loops."""
    import asyncio
    import os

    known: Any = asyncio.tasks
    for _ in range(10):
        try:
            return os.getpid(), sum(not task.done() for task in list(known._all_tasks))
        except RuntimeError:
            continue  # a loop has begun or ended a task meanwhile
    return os.getpid(), 0
