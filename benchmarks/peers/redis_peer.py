"""Redis with streams, one process: its append-only file is synced each second (page cache) or with each command."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.optional import module, version_of
from benchmarks.peers.base import WithoutFailover
from benchmarks.peers.processes import ServerProcess, Unavailable, free_ports, listens


class Redis(WithoutFailover):
    """One redis-server."""

    name = "redis"

    def __init__(self, root: Path) -> None:
        self._root = root / "redis"
        self._port = free_ports(1)[0]
        self._server: ServerProcess | None = None
        self._partitions: dict[str, int] = {}

    def start(self) -> None:
        """Start it."""
        module("redis")
        program = shutil.which("redis-server")
        if program is None:
            raise Unavailable("there is no redis-server on the path: install Debian's package of this name")
        self._root.mkdir(parents=True, exist_ok=True)
        command = [
            program, "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._root), "--save", "",
            "--appendonly", "yes", "--appendfsync", "everysec",
        ]  # fmt: skip
        self._server = ServerProcess("redis-server", command, self._root / "server.out")
        self._server.start()
        self._server.wait_until(lambda: listens(self._port), 20)

    def stop(self) -> None:
        """Stop it."""
        if self._server is not None:
            self._server.stop()

    def runs(self) -> bool:
        """Whether it runs."""
        return self._server is not None and self._server.runs()

    def address(self) -> dict[str, str]:
        """Its port."""
        return {"port": str(self._port)}

    def pids(self) -> list[int]:
        """The process."""
        return [] if self._server is None else [self._server.pid]

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Streams are created by their first record; only the policy for its file is set."""
        if replication > 1:
            raise Unavailable("Redis' replication waits for no replica before it answers: compared without replication")
        client = module("redis").Redis(port=self._port)
        client.config_set("appendfsync", "always" if fsync else "everysec")
        self._partitions[name] = partitions
        client.close()

    def delete_topic(self, name: str) -> None:
        """Remove the streams."""
        client = module("redis").Redis(port=self._port)
        client.delete(*(f"{name}-{item}" for item in range(self._partitions.pop(name, 1))))
        client.close()

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        return {"version": "Debian's redis-server", "client": f"redis {version_of('redis')}", "appendfsync": "everysec"}
