"""Pulsar by pulsar-client: sends in flight, in batches unless they are delayed or paced, and a shared subscription.

Only a shared subscription delivers by time; the library itself sends a delayed message alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.clients.base import Client
from benchmarks.job import Job
from benchmarks.optional import module
from benchmarks.peers.processes import Unavailable
from benchmarks.queues.base import AHEAD

IN_FLIGHT = 1_000
READ_MAX = 1_000


def connect(job: Job) -> Any:
    """A client of the broker; its log has errors alone."""
    pulsar = module("pulsar")
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(f"pulsar://127.0.0.1:{job.address['port']}", logger=logger)


def subscribe(client: Any, job: Job, name: str, ahead: int, *, at_end: bool) -> Any:
    """A consumer of a shared subscription, which is made unless it is there; it prefetches `ahead` messages."""
    pulsar = module("pulsar")
    begin = pulsar.InitialPosition.Latest if at_end else pulsar.InitialPosition.Earliest
    return client.subscribe(
        job.topic,
        name,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=begin,
        receiver_queue_size=ahead,
        batch_index_ack_enabled=True,
    )


def received(consumer: Any, timeout_s: float, most: int) -> list[Any]:
    """Wait for a message, and take with it those that are there; [] when none came in time."""
    timeout: type[Exception] = module("pulsar").Timeout
    found: list[Any] = []
    wait_ms = max(1, int(timeout_s * 1000))
    try:
        while len(found) < most:
            found.append(consumer.receive(wait_ms))
            wait_ms = 0
    except timeout:
        pass  # nothing more is there
    return found


class Measured(Client):
    """A producer, or a consumer with a subscription of its own."""

    def open_producer(self) -> None:
        """Connect."""
        self.client = connect(self.job)
        self.producer: Any = self.client.create_producer(
            self.job.topic,
            max_pending_messages=IN_FLIGHT,
            block_if_queue_full=True,
            batching_enabled=self.job.linger_ms > 0,
            batching_max_messages=AHEAD,  # a batch goes to one consumer
            batching_max_publish_delay_ms=max(1, self.job.linger_ms),
            batching_max_allowed_size_in_bytes=self.job.batch_bytes,
        )
        self._ok = module("pulsar").Result.Ok
        self._refused: list[Any] = []

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One send a message; it waits when too many are not answered."""
        send = self.producer.send_async
        for payload in payloads:
            if self.job.delay_ms:
                send(payload, self._answered, deliver_at=self.due_ms(payload))
            else:
                send(payload, self._answered)

    def _answered(self, result: Any, _place: Any) -> None:
        if result != self._ok:
            self._refused.append(result)

    def flush(self) -> None:
        """Wait for the answers."""
        self.producer.flush()
        if self._refused:
            raise Unavailable(f"Pulsar refused {len(self._refused):,} messages, the first with {self._refused[0]}")

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Subscribe under a new name."""
        self.client = connect(self.job)
        name = group or f"reader-{time.time_ns()}"
        self.consumer: Any = subscribe(self.client, self.job, name, READ_MAX, at_end=at_end)

    def values(self, timeout_s: float) -> list[bytes]:
        """What was pushed, acknowledged."""
        messages = received(self.consumer, timeout_s, READ_MAX)
        for message in messages:
            self.consumer.acknowledge(message)
        return [message.data() for message in messages]

    def take(self, timeout_s: float) -> tuple[int, int]:
        """The same, counted."""
        values = self.values(timeout_s)
        return len(values), sum(map(len, values))

    def close(self) -> None:
        """Remove the subscription, which would keep its place indefinitely, and disconnect."""
        if hasattr(self, "consumer"):
            self.consumer.unsubscribe()
        if hasattr(self, "client"):
            self.client.close()
