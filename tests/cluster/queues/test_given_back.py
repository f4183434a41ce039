"""What is handed out to a member that gives its partition up, or closes, goes to another member at once."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.queues.consumer import AsyncQueueConsumer, QueueMessage
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, fill, run, send
from tests.cluster.talk import Talk
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(60)


async def take(worker: AsyncQueueConsumer, count: int) -> list[QueueMessage]:
    found: list[QueueMessage] = []
    while len(found) < count:
        batch = await worker.getmany(timeout_ms=8_000)
        assert batch, f"{len(found)} of {count} messages came long before any lock runs out"
        found += batch
    return found


def has_messages(worker: AsyncQueueConsumer) -> bool:
    return bool(worker._engine.buffer)


async def locked(cluster: LocalCluster) -> int:
    async with AsyncAdmin(**cluster.clients()) as admin:
        described = await admin.describe_queue("workers")
    return sum(row.acquired for row in described)


def test_a_member_that_loses_a_partition_keeps_only_what_its_user_holds(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"first", b"second"], partitions=2)
        async with consumer(cluster) as slow:
            await eventually(lambda: len(slow._engine.buffer) == 2, what="the messages are at the slow worker")
            held = await slow.getone(timeout_ms=8_000)
            assert held is not None
            async with consumer(cluster) as quick:
                await eventually(lambda: len(slow._engine._sources) == 1, what="the slow worker gave a partition up")
                await send(cluster, "jobs", [b"%d" % number for number in range(40)], keys=40)
                for message in await take(quick, 1):
                    assert message.delivery_count == 1, "no worker has seen it before"
                    message.ack()
                await eventually(
                    lambda: {source.partition for source in slow._engine._retiring} <= {held.topic_partition},
                    what="a partition is left at once where the user holds nothing of it",
                )
                assert not [at for at in slow._engine.buffer if at.topic_partition not in slow._engine._sources]
                assert held.is_locked, "what the user holds stays"
                held.ack()
                await slow.commit()
                await eventually(lambda: not slow._engine._retiring, what="the partition is left")

    run(tmp_path, story)


def test_a_partition_that_comes_back_goes_on_with_what_is_held(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a"])
        jobs = TopicPartition("jobs", 0)
        async with consumer(cluster, lock="2s") as worker:
            held = await worker.getone(timeout_ms=8_000)
            assert held is not None
            engine = worker._engine
            for _ in range(3):  # as the group's rebalances do
                engine._set_partitions([])
                await asyncio.sleep(0.02)
                engine._set_partitions([jobs])
            await send(cluster, "jobs", [b"b"])
            later = await worker.getone(timeout_ms=8_000)
            assert later is not None
            assert (later.value, later.delivery_count) == (b"b", 1)
            assert held.is_locked
            held.ack()
            later.ack()
            await worker.commit()
            engine._set_partitions([])
            for _ in range(10_000):
                if any(source.is_leaving for source in engine._retiring):
                    break
                await asyncio.sleep(0)
            engine._set_partitions([jobs])
            await send(cluster, "jobs", [b"c"])
            last = await worker.getone(timeout_ms=8_000)
            assert last is not None
            assert last.delivery_count == 1

    run(tmp_path, story)


@pytest.mark.parametrize("is_leaving", [False, True], ids=["before it begins", "while it leaves"])
def test_a_partition_comes_back_though_its_retreat_was_cut_off(tmp_path: Path, is_leaving: bool) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a"])
        async with consumer(cluster) as worker:
            (message,) = await take(worker, 1)
            message.ack()
            await worker.commit()
            engine = worker._engine
            engine._set_partitions([])
            for _ in range(10_000):
                if not is_leaving or any(source.is_leaving for source in engine._retiring):
                    break
                await asyncio.sleep(0)
            for task in asyncio.all_tasks():
                if task.get_name() == "queue jobs-0 retires":
                    task.cancel()  # as a framework does
            engine._set_partitions([TopicPartition("jobs", 0)])
            await send(cluster, "jobs", [b"b"])
            (later,) = await take(worker, 1)
            assert (later.value, later.delivery_count) == (b"b", 1)
            later.ack()
            await worker.commit()

    run(tmp_path, story)


def test_what_a_member_that_ends_was_given_goes_to_others_at_once(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        values = [b"%d" % number for number in range(60)]
        await fill(cluster, "jobs", values)
        for _ in range(4):  # each ends with a fetch on its way, or one that waits
            async with consumer(cluster, max_poll_records=20) as short:
                await eventually(partial(has_messages, short), what="messages come")
            assert await locked(cluster) == 0
        async with consumer(cluster) as worker:
            found = await take(worker, len(values))
            assert sorted(message.value for message in found) == sorted(values)
            assert {message.delivery_count for message in found} == {1}, "no worker has taken them before"
            for message in found:
                message.ack()

    run(tmp_path, story)
