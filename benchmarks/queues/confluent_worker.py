"""Kafka's share groups by confluent-kafka's ShareConsumer, which acknowledges what was polled with the next call."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.clients.base import Unsupported
from benchmarks.optional import module
from benchmarks.queues.base import AHEAD, Worker


class Measured(Worker):
    """A member of a share group."""

    def open(self) -> None:
        """Join."""
        library = module("confluent_kafka")
        if not hasattr(library, "ShareConsumer"):
            raise Unsupported("this version of confluent-kafka has no ShareConsumer; 2.16 and newer have one")
        if self.job.load == "work":
            self._begin_at_earliest()
        settings = {
            "bootstrap.servers": self.job.address["bootstrap"],
            "group.id": self.job.group,
            "share.acknowledgement.mode": "implicit",
            "max.poll.records": AHEAD,
        }
        self.consumer: Any = library.ShareConsumer(settings)
        self.consumer.subscribe([self.job.topic])

    def _begin_at_earliest(self) -> None:
        """A share group begins at the latest record, unless its configuration says otherwise."""
        admin = module("confluent_kafka.admin")
        entry = admin.ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=admin.AlterConfigOpType.SET
        )
        resource = admin.ConfigResource(admin.ResourceType.GROUP, self.job.group, incremental_configs=[entry])
        client = admin.AdminClient({"bootstrap.servers": self.job.address["bootstrap"]})
        for future in client.incremental_alter_configs([resource]).values():
            future.result(30)

    def take(self, timeout_s: float) -> list[bytes]:
        """A poll, which also acknowledges the last one's messages."""
        ends_s = time.monotonic() + timeout_s
        while True:
            messages = self.consumer.poll(max(0.0, ends_s - time.monotonic()))
            values = [message.value() for message in messages or () if message.error() is None]
            if values or time.monotonic() >= ends_s:
                return values

    def ack(self) -> None:
        """Send the acknowledgements, without waiting."""
        self.consumer.commit_async()

    def flush(self) -> None:
        """Wait for the answers."""
        self.consumer.commit_sync(30)

    def close(self) -> None:
        """Leave."""
        self.consumer.close()
