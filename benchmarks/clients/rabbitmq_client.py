"""RabbitMQ by pika: publish without waiting, into a quorum queue, or into one whose messages expire into it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.clients.base import Client
from benchmarks.job import Job
from benchmarks.optional import module

PREFETCH = 2_000
STORED_S = 60.0


def connect(job: Job) -> Any:
    """A connection with the first node."""
    pika = module("pika")
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(job.address["port"]), heartbeat=0))


class Measured(Client):
    """A channel."""

    def open_producer(self) -> None:
        """Connect; with `fresh`, the queue is emptied."""
        self.connection = connect(self.job)
        self.channel: Any = self.connection.channel()
        self._later = f"{self.job.topic}-later"
        if self.job.fresh:
            self.channel.queue_purge(self.job.topic)
        self._sent = 0
        self._held = self._count()

    def _count(self) -> int:
        queues = (self.job.topic, self._later) if self.job.delay_ms else (self.job.topic,)
        return sum(int(self.channel.queue_declare(name, passive=True).method.message_count) for name in queues)

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One publish a message; of a delayed one, its time to live is the time until it is due."""
        publish, persistent = self.channel.basic_publish, module("pika").BasicProperties(delivery_mode=2)
        for payload in payloads:
            if self.job.delay_ms:
                left_ms = max(0, self.due_ms(payload) - time.time_ns() // 1_000_000)
                expiring = module("pika").BasicProperties(delivery_mode=2, expiration=str(left_ms))
                publish("", self._later, payload, expiring)
            else:
                publish("", self.job.topic, payload, persistent)
        self._sent += len(payloads)

    def flush(self) -> None:
        """Wait until the queue has what was sent; what consumers have taken meanwhile counts at the reading end."""
        self.channel.queue_declare(self.job.topic, passive=True)  # answered behind the publishes
        if self.job.load not in ("fill", "burst"):
            return
        deadline_s = time.monotonic() + STORED_S
        while self._count() < self._held + self._sent:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._sent} messages were not stored within {STORED_S:.0f} s")
            time.sleep(0.02)

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Consume the queue; `at_end` empties it first."""
        self.connection = connect(self.job)
        self.channel = self.connection.channel()
        if at_end:
            self.channel.queue_purge(self.job.topic)
        self.channel.basic_qos(prefetch_count=PREFETCH)
        self._values: list[bytes] = []
        self._tag = 0
        self.channel.basic_consume(self.job.topic, self._came)

    def _came(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._tag = method.delivery_tag
        self._values.append(body)

    def values(self, timeout_s: float) -> list[bytes]:
        """What was pushed, acknowledged."""
        self._values = []
        self.connection.process_data_events(time_limit=timeout_s)
        if self._values:
            self.channel.basic_ack(self._tag, multiple=True)
        return self._values

    def close(self) -> None:
        """Disconnect."""
        if hasattr(self, "connection"):
            self.connection.close()
