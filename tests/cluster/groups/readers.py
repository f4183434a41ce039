"""Consumers of a group that poll all the time, for stories of groups in a local cluster."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.local_cluster import LocalCluster

QUICK = {"group.initial.rebalance.delay.ms": "50", "group.min.session.timeout.ms": "100"}
TOPIC = "flights"


class Reader:
    """A consumer that polls all the time; it keeps when each partition was read, and what its listener received."""

    def __init__(self, cluster: LocalCluster, **config: Any) -> None:
        given: dict[str, Any] = {"group_id": "board", "auto_offset_reset": "earliest"}
        quick = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 300, "auto_commit_interval_ms": 100}
        self.consumer = AsyncConsumer(**(given | quick | config), **cluster.clients())
        self.read: dict[TopicPartition, list[tuple[float, int]]] = {}
        self.received: list[tuple[str, list[int]]] = []
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self.consumer.subscribe(
            [TOPIC],
            on_assigned=lambda given: self.received.append(("assigned", [each.partition for each in given])),
            on_revoked=lambda given: self.received.append(("revoked", [each.partition for each in given])),
            on_lost=lambda given: self.received.append(("lost", [each.partition for each in given])),
        )
        self.task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            for partition, records in (await self.consumer.getmany(timeout_ms=50)).items():
                seen = self.read.setdefault(partition, [])
                seen.extend((time.monotonic(), record.offset) for record in records)

    async def stop_polling(self) -> None:
        """End the task; what it raised is raised here."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def close(self) -> None:
        await self.stop_polling()
        await self.consumer.stop()

    def assigned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def longest_gap_s(self, partition: int, since_s: float) -> float:
        """The longest time without a record of a partition, from then to now."""
        times = [when for when, _ in self.read.get(TopicPartition(TOPIC, partition), []) if when >= since_s]
        edges = [since_s, *times, time.monotonic()]
        return max(after - before for before, after in pairwise(edges))


@asynccontextmanager
async def readers(cluster: LocalCluster, count: int, **config: Any) -> AsyncIterator[list[Reader]]:
    """Start so many members, and close them at the end."""
    started = [Reader(cluster, **config) for _ in range(count)]
    try:
        for reader in started:
            await reader.start()
        yield started
    finally:
        for reader in started:
            await reader.close()


@asynccontextmanager
async def traffic(cluster: LocalCluster, partitions: int) -> AsyncIterator[None]:
    """Records for each partition, every 20 ms."""

    async def produce(producer: AsyncProducer) -> None:
        while True:
            for number in range(partitions):
                _ = await producer.send(TOPIC, b"x", partition=number)
            await asyncio.sleep(0.02)

    async with AsyncProducer(**cluster.clients()) as producer:
        task = asyncio.create_task(produce(producer))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def shared(group: list[Reader], partitions: int) -> Callable[[], bool]:
    """Whether each partition has exactly one of these readers, and none has nothing."""

    def is_shared() -> bool:
        held = sorted(partition for reader in group for partition in reader.assigned())
        return held == list(range(partitions)) and all(reader.assigned() for reader in group)

    return is_shared
