"""AsyncConsumer on the test's own event loop."""

import asyncio

import pytest

from raylog.base.errors import ClientClosed
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer, RebalanceListener
from tests.unit.client.consumer_support import fill, numbers, offsets, with_coordinator
from tests.unit.client.toy_server import ToyCluster

HERE = TopicPartition("flights", 0)


async def test_records_come_one_by_one_in_lists_and_by_iteration(cluster: ToyCluster) -> None:
    cluster.create_topic("flights", partitions=2)
    fill(cluster, "flights", 0, numbers(0, 30))
    options = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 200, **cluster.options}
    async with AsyncConsumer("flights", **options) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 0
        found = await consumer.getmany(HERE, timeout_ms=5_000, max_records=4)
        assert offsets(found[HERE]) == [1, 2, 3, 4]
        assert await consumer.getmany(TopicPartition("flights", 1), timeout_ms=20) == {}
        consumer.seek(HERE, 20)
        assert [record.offset async for record in consumer] == list(range(20, 30))
        assert await consumer.position(HERE) == 30
    with pytest.raises(ClientClosed):
        await consumer.getone()


def test_a_listener_may_be_a_coroutine_and_is_awaited(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    fill(cluster, "flights", 0, numbers(0, 5))
    coordinator = with_coordinator(cluster)
    story: list[str] = []

    class Listener(RebalanceListener):
        async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            story.append(f"assigned {len(assigned)} at {await consumer.position(HERE)}")

        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            await consumer.commit({HERE: 3})
            story.append(f"revoked {len(revoked)}")

    consumer = AsyncConsumer(
        group_id="board", auto_offset_reset="earliest", enable_auto_commit=False, **cluster.options
    )

    async def work() -> None:
        await consumer.start()
        consumer.subscribe(["flights"], listener=Listener())
        assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 0
        await consumer.stop()
        await consumer.stop()

    asyncio.run(work())
    assert story == ["assigned 1 at 0", "revoked 1"]
    assert coordinator.offset("board", "flights", 0) == 3


async def test_a_cancelled_poll_loses_nothing(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    seen: list[int] = []
    async with AsyncConsumer("flights", auto_offset_reset="earliest", **cluster.options) as consumer:
        for number in range(20):
            waiting = asyncio.ensure_future(consumer.getone())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await asyncio.to_thread(fill, cluster, "flights", 0, [b"%d" % number])
            seen.append((await asyncio.wait_for(consumer.getone(), 10)).offset)
    assert seen == list(range(20))
