"""A listener of an AsyncConsumer whose poll is cancelled: it is called whole, once, and the next poll waits for it."""

import asyncio

import pytest

from raylog.base.errors import ConcurrentUse
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from tests.unit.client.consumer_support import fill, numbers, with_coordinator
from tests.unit.client.toy_server import ToyCluster

HERE = TopicPartition("t", 0)


async def test_a_listener_goes_on_when_its_poll_is_cancelled(cluster: ToyCluster) -> None:
    with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 20))
    calls: list[str] = []
    is_looked_up = asyncio.Event()
    async with AsyncConsumer(**cluster.options, group_id="g", auto_offset_reset="earliest") as consumer:

        async def assigned(partitions: list[TopicPartition]) -> None:
            calls.append("begun")
            await is_looked_up.wait()
            for each in partitions:
                consumer.seek(each, 5)
            calls.append("ended")

        consumer.subscribe(["t"], on_assigned=assigned)
        while not calls:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.getone(), 0.2)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.getone(), 0.05)
        is_looked_up.set()
        assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 5
    assert calls == ["begun", "ended"]


async def test_a_listener_that_polls_on_after_its_poll_is_refused(cluster: ToyCluster) -> None:
    with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    refused: list[ConcurrentUse] = []
    begun, may_poll = asyncio.Event(), asyncio.Event()
    async with AsyncConsumer(**cluster.options, group_id="g", auto_offset_reset="earliest") as consumer:

        async def assigned(_: list[TopicPartition]) -> None:
            begun.set()
            await may_poll.wait()
            try:
                await consumer.getone()
            except ConcurrentUse as error:
                refused.append(error)

        consumer.subscribe(["t"], on_assigned=assigned)
        poll = asyncio.create_task(consumer.getone())
        await asyncio.wait_for(begun.wait(), 10)
        poll.cancel()
        await asyncio.wait([poll])
        may_poll.set()
        assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 0
    assert "may not poll" in str(refused[0])
