"""Groups of the consumer protocol over the wire: members join, leave and die, topics grow, coordinators restart."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.core.errors import InconsistentGroupProtocol, UnreleasedInstanceId, UnsupportedAssignor
from raylog.core.ids import TopicPartition
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

QUICK = {"group.initial.rebalance.delay.ms": "50", "group.min.session.timeout.ms": "100"}
TOPIC = "flights"
GAP_S_MAX = 0.2


class Reader:
    """A consumer that polls all the time; it keeps when each partition was read, and what its listener received."""

    def __init__(self, cluster: LocalCluster, **config: Any) -> None:
        given: dict[str, Any] = {"group_protocol": "consumer", "group_id": "board", "auto_offset_reset": "earliest"}
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


@in_cluster(config=QUICK)
async def test_members_share_the_partitions_as_they_come_and_leave(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=6)
    async with readers(cluster, 1) as (first,):
        await eventually(shared([first], 6))
        second = Reader(cluster)
        await second.start()
        await eventually(shared([first, second], 6))
        assert [kind for kind, _ in first.received] == ["assigned", "revoked"]
        assert len(first.received[1][1]) == 3, "only what the other gets"
        await second.close()
        await eventually(shared([first], 6))
        assert first.received[2] == ("assigned", second.received[0][1])


@in_cluster(config=QUICK)
async def test_a_member_reads_on_what_it_keeps(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with traffic(cluster, 4), readers(cluster, 1) as (first,):
        await eventually(shared([first], 4))
        await eventually(lambda: len(first.read) == 4)
        began_s = time.monotonic()
        async with readers(cluster, 1) as (second,):
            await eventually(shared([first, second], 4))
            kept = first.assigned()
            await eventually(lambda: len(second.read) == 2)
        await eventually(shared([first], 4))
        gaps = {partition: round(first.longest_gap_s(partition, began_s), 3) for partition in kept}
        assert max(gaps.values()) < GAP_S_MAX, gaps


@in_cluster(config=QUICK)
async def test_a_coordinator_that_fails_over_causes_no_rebalance(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with traffic(cluster, 4), readers(cluster, 2) as group, AsyncAdmin(**cluster.clients()) as admin:
        await eventually(shared(group, 4))
        await eventually(lambda: all(len(reader.read) == 2 for reader in group))
        before = await admin.describe_group("board")
        began_s = time.monotonic()
        await cluster.restart_coordinator("group", 0)
        received = [list(reader.received) for reader in group]
        marks = {each: seen[-1][1] for reader in group for each, seen in reader.read.items()}
        await eventually(
            lambda: all(seen[-1][1] > marks[each] + 20 for reader in group for each, seen in reader.read.items())
        )
        after = await admin.describe_group("board")
        assert (after.generation, after.state) == (before.generation, "Stable")
        assert [reader.received for reader in group] == received
        gaps = [reader.longest_gap_s(partition, began_s) for reader in group for partition in reader.assigned()]
        assert max(gaps) < GAP_S_MAX, gaps


@in_cluster(config=QUICK)
async def test_a_member_that_dies_is_replaced_from_its_commits(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with traffic(cluster, 4), readers(cluster, 2) as (first, second):
        await eventually(shared([first, second], 4))
        await eventually(lambda: len(second.read) == 2)
        died = second.assigned()
        await asyncio.sleep(0.3)  # some of it is committed
        await second.stop_polling()
        engine = second.consumer._engine
        assert engine.group is not None
        await engine.group.close()  # no more heartbeats, and no farewell
        await eventually(shared([first], 4))
        await eventually(lambda: died <= {each.partition for each in first.read})
        for partition in died:
            offsets = [offset for _, offset in first.read[TopicPartition(TOPIC, partition)]]
            last = second.read[TopicPartition(TOPIC, partition)][-1][1]
            assert 0 < offsets[0] <= last + 1, "from the last commit"


@in_cluster(config=QUICK)
async def test_new_partitions_are_assigned(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=2)
    async with readers(cluster, 2) as group, AsyncAdmin(**cluster.clients()) as admin:
        await eventually(shared(group, 2))
        await admin.create_partitions(TOPIC, 4)
        await eventually(shared(group, 4))


@in_cluster(config=QUICK)
async def test_a_static_member_that_returns_gets_its_partitions(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with readers(cluster, 1) as (first,), AsyncAdmin(**cluster.clients()) as admin:
        static = Reader(cluster, group_instance_id="gate-1")
        await static.start()
        await eventually(shared([first, static], 4))
        before = static.assigned()
        epoch = (await admin.describe_group("board")).generation
        await static.close()
        again = Reader(cluster, group_instance_id="gate-1")
        await again.start()
        await eventually(lambda: again.assigned() == before)
        assert (await admin.describe_group("board")).generation == epoch
        double = Reader(cluster, group_instance_id="gate-1", session_timeout_ms=400)
        await double.start()
        assert double.task is not None
        with pytest.raises(UnreleasedInstanceId, match="own group_instance_id"):
            await double.task
        await double.close()
        await again.close()


@in_cluster(config=QUICK)
async def test_protocols_do_not_mix_and_an_empty_group_converts(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=2)
    async with AsyncAdmin(**cluster.clients()) as admin:
        async with readers(cluster, 1) as (first,):
            await eventually(shared([first], 2))
            classic = Reader(cluster, group_protocol="classic")
            await classic.start()
            assert classic.task is not None
            with pytest.raises(InconsistentGroupProtocol, match="group_protocol='consumer' here"):
                await classic.task
            await classic.close()
        async with readers(cluster, 1, group_protocol="classic") as (second,):
            await eventually(shared([second], 2))
            assert [group.group_type for group in await admin.list_groups()] == ["classic"]
            wrong = Reader(cluster)
            await wrong.start()
            assert wrong.task is not None
            with pytest.raises(InconsistentGroupProtocol, match="group_protocol='classic' here"):
                await wrong.task
            await wrong.close()
        async with readers(cluster, 1) as (third,):
            await eventually(shared([third], 2))
            assert [group.group_type for group in await admin.list_groups()] == ["consumer"]
            named = await admin.list_groups(["Stable", "Reconciling", "Assigning"], types=["consumer"])
            assert [group.group_id for group in named] == ["board"]
            assert await admin.list_groups(types=["classic"]) == []


@in_cluster(config=QUICK)
async def test_an_assignor_that_is_not_known_is_refused(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=2)
    async with readers(cluster, 1, group_remote_assignor="best") as (only,):
        assert only.task is not None
        with pytest.raises(UnsupportedAssignor, match="uniform, range"):
            await only.task
