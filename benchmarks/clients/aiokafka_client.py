"""aiokafka: Kafka's protocol on asyncio, partly in Cython."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from benchmarks.clients.base import Client, Polling, Stamp
from benchmarks.optional import module

Result = TypeVar("Result")


class OnLoop(Client):
    """A client with its own event loop, which runs while a call is waited for."""

    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end."""
        if not hasattr(self, "loop"):
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(work)

    async def send_one(self, payload: bytes) -> None:
        """Send one record without waiting for its acknowledgement."""
        raise NotImplementedError

    def pace(self, stamp: Stamp, began_ns: int, count: int) -> None:
        """As of every client; sleeping gives the loop time to send."""

        async def paced() -> None:
            step_ns = 1e9 / self.job.rate
            for number in range(count):
                due_ns = began_ns + int(number * step_ns)
                # A sleep is too coarse for the last millisecond, so the loop spins until the due time.
                while (left_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:  # noqa: ASYNC110
                    await asyncio.sleep(left_s if left_s > 0.001 else 0)
                await self.send_one(stamp(due_ns))

        self.run(paced())


class Measured(OnLoop, Polling):
    """AIOKafkaProducer or AIOKafkaConsumer."""

    def open_producer(self) -> None:
        """Connect."""
        self._sent: list[Any] = []

        async def opened() -> Any:
            producer = module("aiokafka").AIOKafkaProducer(
                bootstrap_servers=self.job.address["bootstrap"],
                acks="all" if self.job.acks == "all" else int(self.job.acks),
                enable_idempotence=self.job.acks == "all",
                linger_ms=self.job.linger_ms,
                max_batch_size=self.job.batch_bytes,
                compression_type=None if self.job.compression == "none" else self.job.compression,
            )
            await producer.start()
            return producer

        self.producer = self.run(opened())

    async def send_one(self, payload: bytes) -> None:
        """Send one record."""
        await self.producer.send(self.job.topic, payload)

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One call per record; it waits when a batch is full."""

        async def sent() -> None:
            send, topic = self.producer.send, self.job.topic
            for payload in payloads:
                await send(topic, payload)

        self.run(sent())

    def flush(self) -> None:
        """Wait for the acknowledgements."""
        self.run(self.producer.flush())

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Read every partition, or the group's assignment."""
        library = module("aiokafka")

        async def opened() -> Any:
            consumer = library.AIOKafkaConsumer(
                bootstrap_servers=self.job.address["bootstrap"],
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            if group is not None:
                consumer.subscribe([self.job.topic])
                return consumer
            partitions = [library.TopicPartition(self.job.topic, partition) for partition in range(self.job.partitions)]
            consumer.assign(partitions)
            await (consumer.seek_to_end if at_end else consumer.seek_to_beginning)(*partitions)
            return consumer

        self.consumer = self.run(opened())

    def polled(self, timeout_s: float) -> Any:
        """A getmany."""
        return self.run(self.consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=10_000))

    def rewind(self) -> None:
        """Go back to the first record."""
        self.run(self.consumer.seek_to_beginning())

    def stored(self) -> int:
        """The sum of the high watermarks."""
        library = module("aiokafka")

        async def end_offsets_sum() -> int:
            consumer = library.AIOKafkaConsumer(bootstrap_servers=self.job.address["bootstrap"])
            await consumer.start()
            try:
                partitions = [
                    library.TopicPartition(self.job.topic, partition) for partition in range(self.job.partitions)
                ]
                return int(sum((await consumer.end_offsets(partitions)).values()))
            finally:
                await consumer.stop()

        return self.run(end_offsets_sum())

    def small(self, payloads: Sequence[bytes]) -> Callable[[float], int]:
        """As many producers as connections, each waiting for its record's acknowledgement before the next."""

        async def opened() -> list[Any]:
            kind = module("aiokafka").AIOKafkaProducer
            address, acks = self.job.address["bootstrap"], "all" if self.job.acks == "all" else int(self.job.acks)
            producers = [kind(bootstrap_servers=address, acks=acks, linger_ms=0) for _ in range(self.job.connections)]
            for producer in producers:
                await producer.start()
            return producers

        producers = self.run(opened())

        async def send_until(producer: Any, ends_s: float) -> int:
            sent = 0
            while time.monotonic() < ends_s:
                await producer.send_and_wait(self.job.topic, payloads[sent % len(payloads)])
                sent += 1
            return sent

        async def all_until(ends_s: float) -> int:
            return sum(await asyncio.gather(*(send_until(producer, ends_s) for producer in producers)))

        async def closed() -> int:
            for producer in producers:
                await producer.stop()
            return 0

        def run(seconds: float) -> int:
            return self.run(all_until(time.monotonic() + seconds) if seconds else closed())

        return run

    def close(self) -> None:
        """Close what was opened."""
        for item in (getattr(self, "producer", None), getattr(self, "consumer", None)):
            if item is not None:
                self.run(item.stop())
