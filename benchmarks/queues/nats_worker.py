"""NATS JetStream: a pull consumer that all workers share, on a stream that drops what is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from benchmarks.optional import module
from benchmarks.queues.base import AHEAD, Worker

CONSUMER = "workers"


class Measured(Worker):
    """A fetching subscription on a loop of its own."""

    def open(self) -> None:
        """Connect, and bind to the shared consumer."""
        self._loop = asyncio.new_event_loop()
        self._taken: list[Any] = []

        async def opened() -> None:
            self.connection = await module("nats").connect(f"nats://127.0.0.1:{self.job.address['port']}")
            config = module("nats.js.api").ConsumerConfig(max_ack_pending=20 * AHEAD, ack_wait=30)
            stream = self.connection.jetstream(timeout=30)
            self.subscription = await stream.pull_subscribe(f"{self.job.topic}.*", CONSUMER, self.job.topic, config)

        self._run(opened())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def take(self, timeout_s: float) -> list[bytes]:
        """A fetch of what is there."""
        try:
            self._taken = self._run(self.subscription.fetch(AHEAD, timeout=timeout_s))
        except TimeoutError:  # also of nats-py, whose own is one
            self._taken = []
        return [message.data for message in self._taken]

    def ack(self) -> None:
        """One message a message, which the server does not answer."""

        async def acked() -> None:
            for message in self._taken:
                await message.ack()

        self._run(acked())

    def flush(self) -> None:
        """The server has read everything that was sent."""
        self._run(self.connection.flush(30))

    def close(self) -> None:
        """Disconnect."""
        self._run(self.connection.close())
        self._loop.close()
