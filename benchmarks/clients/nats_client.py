"""NATS JetStream: a stream for a topic, a subject for a partition, publishes in flight, an ordered push consumer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.clients.aiokafka_client import OnLoop
from benchmarks.optional import module

IN_FLIGHT = 1_000


class Measured(OnLoop):
    """The library nats-py."""

    async def _connect(self) -> Any:
        return await module("nats").connect(f"nats://127.0.0.1:{self.job.address['port']}")

    def open_producer(self) -> None:
        """Connect."""

        async def opened() -> Any:
            self.connection = await self._connect()
            return self.connection.jetstream(publish_async_max_pending=IN_FLIGHT)

        self.stream = self.run(opened())
        if self.job.fresh and self.job.load == "fill":
            self.run(self.stream.purge_stream(self.job.topic))
        self._subjects = itertools.cycle([f"{self.job.topic}.{partition}" for partition in range(self.job.partitions)])

    async def send_one(self, payload: bytes) -> None:
        """Publish; waits when too many acknowledgements are outstanding."""
        await self.stream.publish_async(next(self._subjects), payload, wait_stall=10)

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One publish a record."""

        async def sent() -> None:
            for payload in payloads:
                await self.send_one(payload)

        self.run(sent())

    def flush(self) -> None:
        """Wait for the acknowledgements."""
        self.run(asyncio.wait_for(self.stream.publish_async_completed(), 60))

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """An ordered consumer of every subject."""

        async def opened() -> Any:
            self.connection = await self._connect()
            policy = module("nats.js.api").DeliverPolicy
            return await self.connection.jetstream().subscribe(
                f"{self.job.topic}.*",
                ordered_consumer=True,
                deliver_policy=policy.NEW if at_end else policy.ALL,
                pending_msgs_limit=-1,
                pending_bytes_limit=-1,
            )

        self.subscription = self.run(opened())

    def values(self, timeout_s: float) -> list[bytes]:
        """All messages pushed so far."""

        async def read() -> list[bytes]:
            try:
                messages = [await self.subscription.next_msg(timeout=timeout_s)]
            except TimeoutError:
                return []
            while self.subscription.pending_msgs and len(messages) < 10_000:
                messages.append(await self.subscription.next_msg(timeout=timeout_s))
            return [message.data for message in messages]

        return self.run(read())

    def rewind(self) -> None:
        """Subscribe again."""
        self.run(self.connection.close())
        self.open_consumer()

    def stored(self) -> int:
        """The stream's length."""

        async def stream_length() -> int:
            connection = await self._connect()
            try:
                return int((await connection.jetstream().stream_info(self.job.topic)).state.messages)
            finally:
                await connection.close()

        return self.run(stream_length())

    def close(self) -> None:
        """Close the connection."""
        if hasattr(self, "connection"):
            self.run(self.connection.close())
