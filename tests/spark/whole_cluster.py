"""A whole cluster in this process, on a thread of its own, for Spark to write to: real shells, sockets and files."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.runtime import Runtime
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.waiting import wait_for

Result = TypeVar("Result")
START_TIMEOUT_S = 60.0


class WholeCluster:
    """A context manager; tests call its methods from their own thread."""

    def __init__(self, root: Path, brokers: int = 1) -> None:
        self.runtime = Runtime()
        self.cluster = LocalCluster(root, brokers=brokers)

    def __enter__(self) -> Self:
        self.run(self.cluster.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.cluster.stop())
        self.runtime.stop()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run something on the cluster's loop."""
        return self.runtime.run(work, START_TIMEOUT_S)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of a client."""
        host, port = next(iter(self.cluster.broker_servers.values())).endpoint
        return {"bootstrap": f"{host}:{port}", "secret": SECRET}

    @property
    def spark_options(self) -> dict[str, str]:
        """Options of a data source."""
        return {"raylog.bootstrap": self.options["bootstrap"], "raylog.secret": SECRET.hex()}

    def create_topic(self, name: str, partitions: int = 1, replication_factor: int = 1, **config: str) -> None:
        """Create a topic; a setting's name has underscores in place of its dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        with Admin(**self.options) as admin:
            admin.create_topic(name, partitions=partitions, replication_factor=replication_factor, config=settings)

    def values(self, topic: str, partitions: int = 1, *, isolation_level: Any = "read_committed") -> list[bytes]:
        """The values of all records that a reader sees, sorted."""
        found: list[bytes] = []
        places = [TopicPartition(topic, number) for number in range(partitions)]
        with Consumer(**self.options, isolation_level=isolation_level, enable_auto_commit=False) as consumer:
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            consumer.seek_to_beginning()
            while any(consumer.position(place) < ends[place] for place in places):
                for records in consumer.poll(1.0).values():
                    found += [record.value for record in records]
        return sorted(found)

    def values_at_rest(self, topic: str, partitions: int = 1) -> list[bytes]:
        """The same when no transaction is open: a commit is answered when it is decided, before its markers."""
        places = [TopicPartition(topic, number) for number in range(partitions)]
        with (
            Consumer(**self.options, isolation_level="read_committed", enable_auto_commit=False) as committed,
            Consumer(**self.options, enable_auto_commit=False) as plain,
        ):
            wait_for(lambda: committed.end_offsets(places) == plain.end_offsets(places), "all transactions end")
        return self.values(topic, partitions)
