"""ray.util.queue on the Ray that Raylog runs on: a queue in an actor's memory."""

from __future__ import annotations

from pathlib import Path

from benchmarks.optional import version_of
from benchmarks.peers.base import WithoutFailover
from benchmarks.peers.processes import Unavailable
from benchmarks.peers.raylog_peer import Raylog


class RayQueue(WithoutFailover):
    """A queue in Raylog's Ray; it has no server of its own."""

    name = "ray.util.queue"

    def __init__(self, raylog: Raylog) -> None:
        self._raylog = raylog

    def start(self) -> None:
        """Ray runs already."""

    def stop(self) -> None:
        """Ends with Ray."""

    def runs(self) -> bool:
        """Always reported as running: Raylog's peer restarts Ray."""
        return True

    def address(self) -> dict[str, str]:
        """Ray's address."""
        return self._raylog.address()

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """A queue is created by its first user."""
        if partitions > 1 or replication > 1 or fsync:
            raise Unavailable(f"the queue {name} has neither partitions nor replicas nor a disk")

    def delete_topic(self, name: str) -> None:
        """It ends with Ray."""

    def pids(self) -> list[int]:
        """Ray's processes."""
        return self._raylog.pids()

    def replica_pids(self) -> list[int]:
        """There are none."""
        return []

    def folder(self) -> Path:
        """It has none; Raylog's is given."""
        return self._raylog.folder()

    def describe(self) -> dict[str, str]:
        """Version."""
        return {"version": f"Ray {version_of('ray')}", "storage": "memory of one actor"}
