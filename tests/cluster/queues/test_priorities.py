"""Priorities between topics, at real brokers: strict ones, and shares by weight."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raylog.client.queues.consumer import AsyncQueueConsumer, QueueConsumer, QueueMessage
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_given_back import locked
from tests.cluster.queues.test_queue_stories import consumer, fill, run, send
from tests.cluster.talk import Talk
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def of_both(cluster: LocalCluster, **keywords: object) -> AsyncQueueConsumer:
    return AsyncQueueConsumer("urgent", "later", group_id="workers", **{**cluster.clients(), **keywords})


async def take(worker: AsyncQueueConsumer, count: int) -> list[QueueMessage]:
    """Take messages one by one, each acknowledged at once."""
    found: list[QueueMessage] = []
    while len(found) < count:
        message = await worker.getone(timeout_ms=20_000)
        assert message is not None, f"{len(found)} of {count} messages came"
        message.ack()
        found.append(message)
    return found


def test_a_strict_priority_empties_the_first_topic_before_the_second(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "later", values(100))
        await fill(cluster, "urgent", values(300), partitions=2, keys=20)
        # Few are locked ahead, so that the first topic has to be fetched many times.
        async with of_both(cluster, priority="strict", max_poll_records=20) as worker:
            found = await take(worker, 400)
            assert [message.topic for message in found] == ["urgent"] * 300 + ["later"] * 100
            await send(cluster, "later", values(50))
            await take(worker, 10)
            await send(cluster, "urgent", values(10))
            await eventually(lambda: any(message.topic == "urgent" for message in worker._engine.buffer))
            rest = [message.topic for message in await take(worker, 50)]
            assert rest == ["urgent"] * 10 + ["later"] * 40, "it goes before what was locked ahead"
            await worker.commit()

    run(tmp_path, story)


def test_what_waits_for_a_higher_topic_goes_to_another_member(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "urgent", [])
        await fill(cluster, "later", values(20))
        async with of_both(cluster, priority="strict", lock="2s") as busy:
            await eventually(lambda: len(busy._engine.buffer) == 20, what="what is of the lower topic is locked ahead")
            await send(cluster, "urgent", values(3))
            await eventually(lambda: len(busy._engine.buffer) <= 3, what="it is given back after a part of the lock")
            async with asyncio.timeout(10):
                while await locked(cluster) != 3:
                    await busy.commit()
            async with consumer(cluster, "later", lock="2s") as free:
                found = await take(free, 20)
                assert {message.delivery_count for message in found} == {1}, "no worker has seen them before"
                await free.commit()
            assert [message.topic for message in await take(busy, 3)] == ["urgent"] * 3

    run(tmp_path, story)


def test_weights_share_the_hand_outs_while_both_topics_have_records(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "urgent", values(900))
        await fill(cluster, "later", values(500))
        async with of_both(cluster, priority={"urgent": 3, "later": 1}) as worker:
            engine = worker._engine
            await eventually(lambda: {message.topic for message in engine.buffer} == {"urgent", "later"})
            found: list[QueueMessage] = []
            while len(found) < 800:
                # As a worker with some work to do: both topics are at hand again and again.
                found += await take(worker, 20)
                await eventually(lambda: {message.topic for message in engine.buffer} == {"urgent", "later"})
            urgent = sum(message.topic == "urgent" for message in found)
            assert abs(urgent - 600) <= 4, "three of four, within a turn of each"
            rest = await take(worker, 600)
            assert sum(message.topic == "later" for message in [*found, *rest]) == 500, (
                "nothing idles when one is empty"
            )
            await worker.commit()

    run(tmp_path, story)


def test_the_synchronous_consumer_has_priorities_too(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "later", values(30))
        await fill(cluster, "urgent", values(30))

        def work() -> list[str]:
            keywords = {**cluster.clients(), "consumer_timeout_ms": 3_000}
            with QueueConsumer("urgent", "later", group_id="workers", priority="strict", **keywords) as queue:
                found = []
                for message in queue:
                    message.ack()
                    found.append(message.topic)
                queue.commit()
                return found

        assert await asyncio.to_thread(work) == ["urgent"] * 30 + ["later"] * 30

    run(tmp_path, story)
