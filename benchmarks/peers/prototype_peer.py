"""The bare prototype as a server among the others: one process and one file a topic, no replicas."""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchmarks import prototype
from benchmarks.peers.base import WithoutFailover
from benchmarks.peers.processes import Unavailable


class Prototype(WithoutFailover):
    """Servers of `benchmarks.prototype`, one for each topic."""

    name = "prototype"

    def __init__(self, root: Path) -> None:
        self._root = root / "prototype"
        self._running: dict[str, prototype.Running] = {}

    def start(self) -> None:
        """A server comes with its topic."""
        self._root.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        """End every server."""
        for name in list(self._running):
            self.delete_topic(name)

    def runs(self) -> bool:
        """As long as its topics do."""
        return True

    def address(self) -> dict[str, str]:
        """The port of each topic."""
        return {name: str(item.port) for name, item in self._running.items()}

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Start a server that appends to one file."""
        if partitions > 1 or replication > 1:
            raise Unavailable("the prototype has neither partitions nor replicas")
        self._running[name] = prototype.Running("sync" if fsync else "store", self._root / name)

    def delete_topic(self, name: str) -> None:
        """End its server and remove its file."""
        self._running.pop(name).stop()
        with contextlib.suppress(FileNotFoundError):
            (self._root / name / prototype.FILE).unlink()

    def pids(self) -> list[int]:
        """The servers' processes."""
        return [item.pid for item in self._running.values()]

    def describe(self) -> dict[str, str]:
        """What it leaves out is in the module's words."""
        return {"storage": "one file, acknowledged after the append"}
