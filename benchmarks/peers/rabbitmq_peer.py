"""RabbitMQ: a cluster of Debian's rabbitmq-server, each node an Erlang virtual machine; quorum queues.

Its programs are run as they are, with every file in the run's folder, and with a port mapper (epmd) of its own, so that
it meets no other Erlang node of this machine. Mozilla Public License 2.0; nothing of it is copied here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.optional import module, version_of
from benchmarks.peers.base import WithoutFailover
from benchmarks.peers.processes import ServerProcess, Unavailable, free_ports, listens

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""Debian's scripts without the wrapper, which insists on the user rabbitmq."""
SETTINGS = """\
cluster_formation.peer_discovery_backend = classic_config
{members}
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
log.console = false
disk_free_limit.absolute = 50MB
cluster_formation.target_cluster_size_hint = {size}
"""
START_TIMEOUT_S = 120.0


class RabbitMq(WithoutFailover):
    """A cluster on this machine."""

    name = "rabbitmq"

    def __init__(self, root: Path, nodes: int) -> None:
        self._root = root / "rabbitmq"
        self._ports = free_ports(2 * nodes + 1)
        self._nodes = [f"bench{number + 1}@localhost" for number in range(nodes)]
        self._servers: list[ServerProcess] = []
        self._mapper: ServerProcess | None = None

    def start(self) -> None:
        """Start the nodes and wait until they are one cluster."""
        module("pika")
        if not (PROGRAMS / "rabbitmq-server").exists():
            raise Unavailable("there is no rabbitmq-server: install Debian's package of this name")
        mapper = shutil.which("epmd")
        if mapper is None:
            raise Unavailable("there is no epmd on the path: install Debian's package erlang-base")
        if not self._servers:
            self._prepare(mapper)
        for server in (self._mapper, *self._servers):
            if server is not None:
                server.start()
        for server, port in zip(self._servers, self._ports[1::2], strict=True):
            server.wait_until(lambda port=port: listens(port), START_TIMEOUT_S)  # type: ignore[misc]
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self._members() < len(self._nodes):
            if time.monotonic() > deadline_s:
                raise Unavailable(f"the nodes of RabbitMQ were no cluster within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.5)

    def _prepare(self, mapper: str) -> None:
        self._root.mkdir(parents=True)
        cookie = self._root / ".erlang.cookie"
        cookie.write_text("BENCHMARK", encoding="ascii")
        cookie.chmod(0o400)
        self._mapper = ServerProcess(
            "epmd", [mapper, "-port", str(self._ports[0]), "-address", "127.0.0.1"], self._root / "epmd.out"
        )
        members = "\n".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}"
            for number, name in enumerate(self._nodes, start=1)
        )
        for number, name in enumerate(self._nodes):
            port = self._ports[2 * number + 1]
            settings = SETTINGS.format(members=members, port=port, size=len(self._nodes))
            (self._root / f"{number + 1}.conf").write_text(settings, encoding="utf-8")
            command = [str(PROGRAMS / "rabbitmq-server")]
            self._servers.append(
                ServerProcess(
                    f"rabbitmq {name}", command, self._root / f"{number + 1}.out", environment=self._settings(number)
                )
            )

    def _settings(self, number: int) -> dict[str, str]:
        folder = self._root / str(number + 1)
        return {
            "HOME": str(self._root),
            "ERL_EPMD_PORT": str(self._ports[0]),
            "RABBITMQ_NODENAME": self._nodes[number],
            "RABBITMQ_DIST_PORT": str(self._ports[2 * number + 2]),
            "RABBITMQ_CONFIG_FILE": str(self._root / f"{number + 1}.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self._root / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._root / "no-plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def _members(self) -> int:
        """How many nodes run in the cluster of the first."""
        command = [str(PROGRAMS / "rabbitmqctl"), "--silent", "eval", "length(rabbit_nodes:all_running())."]
        found = subprocess.run(
            command, env={**os.environ, **self._settings(0)}, capture_output=True, text=True, timeout=60, check=False
        )
        answer = found.stdout.strip()
        return int(answer) if answer.isdigit() else 0

    def stop(self) -> None:
        """Stop the nodes."""
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.stop()
        if self._mapper is not None:
            self._mapper.stop()

    def runs(self) -> bool:
        """Whether all nodes run."""
        return all(server.runs() for server in self._servers)

    def address(self) -> dict[str, str]:
        """The port of the first node."""
        return {"port": str(self._ports[1])}

    def _channel(self) -> Any:
        pika = module("pika")
        address = pika.ConnectionParameters("127.0.0.1", self._ports[1], heartbeat=0)
        return pika.BlockingConnection(address).channel()

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        """Only its queues are measured."""
        raise Unavailable("RabbitMQ is measured with queues alone")

    def create_queue(self, name: str, replication: int) -> None:
        """A quorum queue; and one without consumers whose messages expire into it, for delays."""
        channel = self._channel()
        quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": replication}
        channel.queue_declare(name, durable=True, arguments=quorum)
        later = {**quorum, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name,
                 "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}  # fmt: skip
        channel.queue_declare(f"{name}-later", durable=True, arguments=later)
        channel.connection.close()

    def delete_topic(self, name: str) -> None:
        """Remove the queues."""
        channel = self._channel()
        channel.queue_delete(name)
        channel.queue_delete(f"{name}-later")
        channel.connection.close()

    def pids(self) -> list[int]:
        """The processes of the nodes: scripts, and virtual machines below them."""
        scripts = [psutil.Process(server.pid) for server in self._servers]
        return [process.pid for script in scripts for process in (script, *script.children(recursive=True))]

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        return {
            "version": "Debian's rabbitmq-server",
            "client": f"pika {version_of('pika')}",
            "processes": f"{len(self._nodes)} nodes, an Erlang virtual machine each",
        }
