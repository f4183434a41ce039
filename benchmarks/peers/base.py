"""The interface between the harness and a server."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

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
        """The connection settings of a client process."""

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Create a topic, with acknowledgements from the page cache, or from the disk."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until its processes have ended."""

    def pids(self) -> list[int]:
        """All processes of the server, for their CPU time."""

    def replica_pids(self) -> list[int]:
        """The processes that hold replicas, for their memory."""

    def kill_leader(self, topic: str) -> None:
        """Kill the leader process of the topic's partition 0."""

    def heal(self) -> None:
        """Restart the killed process."""

    def folder(self) -> Path:
        """The folders of its logs."""

    def describe(self) -> dict[str, str]:
        """Version and settings."""


@runtime_checkable
class QueuePeer(Protocol):
    """A server on which a work queue is something else than a topic."""

    def create_queue(self, name: str, replication: int) -> None:
        """Create an empty work queue, which `delete_topic` deletes."""


class WithoutFailover:
    """Base of the peers without process kills: nothing takes over, or it is measured against Kafka alone."""

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
        """The folders of its files."""
        return self._root
