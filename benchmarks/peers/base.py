"""What the harness asks of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks.peers.processes import Unavailable


class Peer(Protocol):
    """A server that can be measured. Every method may raise `processes.Unavailable`."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def start(self) -> None:
        """Start it, or start it again on the same data, and wait until it serves."""

    def stop(self) -> None:
        """Stop it; its data stays."""

    def runs(self) -> bool:
        """Whether all of its processes run."""

    def address(self) -> dict[str, str]:
        """What a client process needs to reach it."""

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Create a topic, with acknowledgements from the page cache, or from the disk."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the processes that it had have ended."""

    def pids(self) -> list[int]:
        """All processes of the server, for their CPU time."""

    def replica_pids(self) -> list[int]:
        """The processes that hold replicas, for their memory."""

    def kill_leader(self, topic: str) -> None:
        """Kill the process that leads the topic's partition 0."""

    def heal(self) -> None:
        """Bring back what was killed."""

    def folder(self) -> Path:
        """Where its logs lie."""

    def describe(self) -> dict[str, str]:
        """Version and settings."""


class WithoutFailover:
    """What the peers share of which no process is killed: nothing takes over, or it is measured against Kafka alone."""

    _root: Path

    def pids(self) -> list[int]:
        """All processes of the server."""
        raise NotImplementedError

    def replica_pids(self) -> list[int]:
        """The same."""
        return self.pids()

    def kill_leader(self, topic: str) -> None:
        """Not measured."""
        raise Unavailable(f"failover is measured against Kafka alone, not for {topic}")

    def heal(self) -> None:
        """Nothing was killed."""

    def folder(self) -> Path:
        """Where its files lie."""
        return self._root
