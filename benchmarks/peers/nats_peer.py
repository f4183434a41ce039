"""NATS JetStream: one server or a cluster of three, file storage. It syncs by time alone, each two minutes."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.optional import module, version_of
from benchmarks.peers.base import WithoutFailover
from benchmarks.peers.processes import ServerProcess, Unavailable, free_ports, listens


class Nats(WithoutFailover):
    """A cluster of nats-server processes."""

    name = "nats"

    def __init__(self, root: Path, servers: int) -> None:
        self._root = root / "nats"
        self._ports = free_ports(2 * servers)
        self._servers: list[ServerProcess] = []

    def start(self) -> None:
        """Start the servers and wait until streams can be made."""
        module("nats")
        program = shutil.which("nats-server")
        if program is None:
            raise Unavailable("there is no nats-server on the path: install Debian's package of this name")
        if not self._servers:
            self._root.mkdir(parents=True)
            clients, others = self._ports[::2], self._ports[1::2]
            routes = ",".join(f"nats://127.0.0.1:{port}" for port in others)
            for number, (client, other) in enumerate(zip(clients, others, strict=True), start=1):
                command = [
                    program, "--jetstream", "--addr", "127.0.0.1", "--port", str(client),
                    "--store_dir", str(self._root / str(number)), "--name", f"server-{number}",
                ]  # fmt: skip
                if len(clients) > 1:
                    listen = f"nats://127.0.0.1:{other}"
                    command += ["--cluster_name", "bench", "--cluster", listen, "--routes", routes]
                self._servers.append(ServerProcess(f"nats-server {number}", command, self._root / f"{number}.out"))
        for server in self._servers:
            server.start()
        for server, port in zip(self._servers, self._ports[::2], strict=True):
            server.wait_until(lambda port=port: listens(port), 20)  # type: ignore[misc]
        self._do(lambda stream: stream.account_info(), patience_s=30)

    def _do(self, work: Callable[[Any], Coroutine[Any, Any, Any]], patience_s: float = 10) -> Any:
        async def done() -> Any:
            connection = await module("nats").connect(f"nats://127.0.0.1:{self._ports[0]}")
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                return asyncio.run(done())
            except Exception as error:  # of many classes, while a cluster elects its first leader
                if time.monotonic() > deadline_s:
                    raise Unavailable(f"nats-server does not answer: {error}") from error
                time.sleep(0.2)

    def stop(self) -> None:
        """Stop the servers."""
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.stop()

    def runs(self) -> bool:
        """Whether all servers run."""
        return all(server.runs() for server in self._servers)

    def address(self) -> dict[str, str]:
        """The port of the first."""
        return {"port": str(self._ports[0])}

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Create a stream with one subject a partition."""
        if fsync:
            raise Unavailable("this version of nats-server cannot sync before it answers")
        if replication > len(self._servers):
            raise Unavailable(f"only {len(self._servers)} servers run")
        subjects = [f"{name}.{partition}" for partition in range(partitions)]
        self._do(lambda stream: stream.add_stream(name=name, subjects=subjects, num_replicas=replication))

    def create_queue(self, name: str, replication: int) -> None:
        """Create a stream that drops what is acknowledged."""
        if replication > len(self._servers):
            raise Unavailable(f"only {len(self._servers)} servers run")
        policy = module("nats.js.api").RetentionPolicy.WORK_QUEUE
        self._do(
            lambda stream: stream.add_stream(
                name=name, subjects=[f"{name}.0"], num_replicas=replication, retention=policy
            )
        )

    def delete_topic(self, name: str) -> None:
        """Remove the stream."""
        self._do(lambda stream: stream.delete_stream(name))

    def pids(self) -> list[int]:
        """The processes."""
        return [server.pid for server in self._servers]

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        return {
            "version": "Debian's nats-server",
            "client": f"nats-py {version_of('nats-py')}",
            "processes": str(len(self._servers)),
            "storage": "file, synced every two minutes",
        }
