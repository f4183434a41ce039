"""Faults for a topic on a real cluster, while it is read. May touch: processes, files of the brokers.

Only descendants of this process are ever killed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import raylog
from raylog.base.errors import RaylogError
from tests.cluster.ray_support import kill_leaders
from tests.readers import topics
from tests.readers.promises import Promise
from tests.readers.reading import TOKEN_S
from tests.readers.trials import Fault, Trial

SEEN_S = 3.0
"""How long retention and the cleaner may take before the trial goes on without."""


@dataclass
class Injuries:
    """What one trial does to its topic."""

    trial: Trial
    topic: str
    promise: Promise
    admin: raylog.Admin
    root: Path
    began_s: float
    killed: int = 0
    """Workers that were there to be killed."""

    def due(self, faults: list[Fault], count: int) -> int:
        """Carry out what is due when a reader has `count` rows; up to how many it may have until the next one."""
        total = max(1, len(self.promise.rows))
        while faults and count >= faults[0].after * total:
            fault = faults.pop(0)
            self.promise.happened.add(fault.kind)
            getattr(self, f"_{fault.kind}")(fault)
        return int(faults[0].after * total) if faults else 1 << 60

    def _worker(self, fault: Fault) -> None:
        for process in readers_of(self.trial):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
            self.killed += 1

    def _leader(self, fault: Fault) -> None:
        if not self.promise.is_deleted:
            kill_leaders(self.admin, self.topic)

    _cut = _leader

    def _delete(self, fault: Fault) -> None:
        if self.promise.is_deleted:
            return
        ends = topics.ends_of(self.trial, self.topic)
        before: dict[tuple[str, int], int] = {place: int(fault.upto * end) for place, end in ends.items()}
        known = self.promise.log_starts
        known.update({partition: max(at, known.get(partition, 0)) for (_, partition), at in before.items()})
        self.admin.delete_records(before)

    def _retention(self, fault: Fault) -> None:
        if self.promise.is_deleted:
            return
        self.admin.alter_topic_config(self.topic, {"retention.ms": 1, "segment.ms": 1})
        self._wait(lambda: any(at > 0 for at in self._log_starts().values()))

    def _log_starts(self) -> dict[int, int]:
        topics.note_log_starts(self.promise, self.topic)
        return self.promise.log_starts

    def _compact(self, fault: Fault) -> None:
        if self.promise.is_deleted:
            return
        self.promise.is_compacted = True
        before = {path: path.stat().st_ino for path in self._segments()}
        self.admin.alter_topic_config(
            self.topic, {"cleanup.policy": "compact", "min.compaction.lag.ms": 0, "max.compaction.lag.ms": 1}
        )
        self._wait(lambda: any(before.get(path, 0) != inode for path, inode in self._inodes()))

    def _inodes(self) -> Iterator[tuple[Path, int]]:
        for path in self._segments():
            try:
                yield path, path.stat().st_ino
            except OSError:
                continue

    def _damage(self, fault: Fault) -> None:
        self._flip(of_all=False)

    def _ruin(self, fault: Fault) -> None:
        self._flip(of_all=True)

    def _flip(self, *, of_all: bool) -> None:
        """Flip a bit at one place of a partition: in the leader's file, or in the files of all replicas."""
        if self.promise.is_deleted:
            return
        dice = random.Random(self.trial.seed)
        partition = dice.randrange(self.trial.partitions)
        (found,) = self.admin.describe_topics([self.topic]).values()
        leader = found.partitions[partition].leader
        sizes = {path.name: path.stat().st_size for path in self._segments(partition, leader)}
        names = sorted(name for name, size in sizes.items() if size)
        if not names:
            return
        name = dice.choice(names)
        at, bit = dice.randrange(sizes[name]), 1 << dice.randrange(8)
        if dice.random() < 0.3:
            at = dice.randrange(min(61, sizes[name]))  # of a header
        for path in self._segments(partition, None if of_all else leader):
            if path.name == name:
                flip(path, at, bit)

    def _segments(self, partition: int | None = None, broker: int | None = None) -> list[Path]:
        name = f"{self.topic}-{'*' if partition is None else partition}"
        found = self.root.glob(f"**/{name}/*.log")
        return [path for path in found if broker is None or f"broker-{broker}" in path.parts]

    def _expire(self, fault: Fault) -> None:
        left_s = self.began_s + TOKEN_S + 2.5 - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)

    def _recreate(self, fault: Fault) -> None:
        if self.promise.is_deleted:
            return
        self.promise.is_deleted = True
        self.admin.delete_topic(self.topic)
        topics.make(self.admin, self.trial, self.topic, "new")

    def _wait(self, holds: Any) -> None:
        deadline_s = time.monotonic() + SEEN_S
        while time.monotonic() < deadline_s:
            try:
                if holds():
                    return
            except (RaylogError, OSError):
                pass
            time.sleep(0.05)


def flip(path: Path, at: int, bit: int) -> None:
    """Flip a bit in place, under whatever has the file open."""
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)
        if byte:
            os.pwrite(file.fileno(), bytes([byte[0] ^ bit]), at)


def readers_of(trial: Trial) -> list[psutil.Process]:
    """The workers that read now: descendants of this process."""
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            line, above = " ".join(each.cmdline()), each.parent()
            if trial.reader in ("ray", "follow"):
                if "ray::ReadRaylog" in line:
                    found.append(each)
            elif "pyspark" in line and "daemon" in line and above is not None and "daemon" in " ".join(above.cmdline()):
                found.append(each)
        except psutil.Error:
            continue
    return found
