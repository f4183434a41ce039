"""Raylog at rest: a cluster on a Ray of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.clients.raylog_client import Measured
from benchmarks.job import Job
from benchmarks.peers.processes import Unavailable
from benchmarks.peers.raylog_peer import Raylog, topic_config
from benchmarks.rest.peer import Deadline, OnServer, Request, expect, first_of, wait_until_led
from benchmarks.rest.table import DESCRIBE, LIST, STATUS
from raylog.client.admin.admin import Admin
from raylog.client.admin.descriptions import TopicDescription

POLL_S = 0.02
CLOSE_S = 1.0
"""For records that were not acknowledged in their time."""


class RaylogWriter:
    """A Producer."""

    def __init__(self, client: Measured) -> None:
        self._topic = client.job.topic
        client.open_producer()
        self._producer = client.producer

    def send(self, partition: int, value: bytes, timeout_s: float) -> None:
        """Wait for the future."""
        self._producer.send(self._topic, value, partition=partition).result(timeout_s)

    def send_later(self, partition: int, value: bytes, done: Callable[[str], None]) -> None:
        """`done` is called in the client's thread."""

        def settled(future: Any) -> None:
            error = future.exception(0)
            done("" if error is None else str(error))

        self._producer.send(self._topic, value, partition=partition).add_done_callback(settled)

    def wait_until(self, moment_s: float) -> None:
        """Only wait: the client's thread reports acknowledgements."""
        time.sleep(max(0.0, moment_s - time.monotonic()))

    def flush(self, timeout_s: float) -> None:
        """Wait for all futures."""
        self._producer.flush(timeout_s)

    def close(self) -> None:
        """Close it."""
        self._producer.close(CLOSE_S)


class RaylogAtRest(OnServer[Raylog]):
    """One to three brokers, with the settings of the other benchmarks."""

    name = "raylog"

    def __init__(self, root: Path, brokers: int, timeout_s: float, config: Mapping[str, str]) -> None:
        super().__init__(Raylog(root, brokers, timeout_s=timeout_s, config=config))

    @property
    def notes(self) -> list[str]:
        """Which processes count, and which do not."""
        return [
            "Raylog's memory and CPU are those of its actors and of the process that they are forked from; Ray's own "
            "processes (GCS, raylet, agents, monitors, idle workers) are apart. The process that called "
            "`raylog.start()` is in neither. Stop and start include those of Ray."
        ]

    def not_servers(self) -> set[int]:
        """The process that holds the cluster: with `raylog start` there is none."""
        return {self._server.host_pid()}

    def create(self, topic: str, partitions: int, replication: int, deadline: Deadline) -> None:
        """`Admin.create_topic` returns when every broker knows the leaders."""
        config = topic_config(replication, fsync=False)
        with self._admin() as admin:
            admin.create_topic(topic, partitions, replication, config=config, timeout_s=deadline.left_s)
            wait_until_led(
                lambda: _is_led(admin.describe_topic(topic, timeout_s=deadline.left_s), partitions),
                topic, deadline, POLL_S,
            )  # fmt: skip

    def serve(self, topic: str, partitions: int, deadline: Deadline) -> bool:
        """A leader that the brokers know takes requests."""
        return False

    def requests(self, topic: str, partitions: int) -> Mapping[str, Request]:
        """`Cluster.status`, which `raylog status` shows, and the Admin's."""

        def status(_: Deadline) -> float:
            found = self._server.status()
            expect(int(found["partitions"]), partitions, "the status")
            return float(found["seconds"])

        def list_topics(deadline: Deadline) -> float:
            with self._admin() as admin:
                began_s = time.monotonic()
                names = admin.list_topics(timeout_s=deadline.left_s)
                took_s = time.monotonic() - began_s
            if topic not in names:
                raise Unavailable(f"the list of topics does not have {topic}")
            return took_s

        def describe_topics(deadline: Deadline) -> float:
            with self._admin() as admin:
                began_s = time.monotonic()
                described = admin.describe_topics(timeout_s=deadline.left_s)
                took_s = time.monotonic() - began_s
            expect(len(described[topic].partitions), partitions, "the description")
            return took_s

        return {STATUS: status, LIST: list_topics, DESCRIBE: describe_topics}

    def writer(self, topic: str) -> RaylogWriter:
        """A Producer with the settings of the other benchmarks."""
        return RaylogWriter(client(topic, self._server.address()))

    def first_value(self, topic: str, deadline: Deadline) -> bytes:
        """Poll a consumer."""
        return first_of(client(topic, self._server.address()), topic, deadline)

    def _admin(self) -> Admin:
        address = self._server.address()
        return Admin(bootstrap=address["bootstrap"], secret=address["secret"])


def client(topic: str, address: Mapping[str, str]) -> Measured:
    """A client without linger time; it connects when something of it is opened."""
    return Measured(Job(load="", client="raylog", topic=topic, address=dict(address), linger_ms=0))


def _is_led(described: TopicDescription, partitions: int) -> bool:
    return len(described.partitions) == partitions and all(item.leader >= 0 for item in described.partitions)
