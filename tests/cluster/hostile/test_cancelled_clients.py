"""Asyncio: a call cancelled at any await, and a framework that cancels every task of the loop meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from raylog.base.errors import InvalidRecordState, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.half_messages.producer import AsyncHalfMessageProducer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from tests.cluster.hostile.striking import TEST, Stepped, StruckTasks, cancel, cancel_others, spread
from tests.cluster.hostile.test_interrupted_clients import RECORDS, filled
from tests.cluster.hostile.test_interrupted_producers import stored
from tests.cluster.hostile.world import NEXT_S, World
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore")
WAIT_MS = NEXT_S * 1_000
ACTS: dict[str, Callable[[asyncio.Task[Any]], object]] = {"cancelled": cancel, "all others cancelled": cancel_others}
MAKERS: dict[str, Callable[[dict[str, Any], str, str], Any]] = {
    "producer": lambda options, _, __: AsyncProducer(**options),
    "consumer": lambda options, topic, group: AsyncConsumer(
        topic, **options, group_id=group, auto_offset_reset="earliest"
    ),
    "queue": lambda options, topic, group: AsyncQueueConsumer(topic, **options, group_id=group),
    "admin": lambda options, _, __: AsyncAdmin(**options),
    "half": lambda options, _, group: AsyncHalfMessageProducer(group, None, **options),
}


class LoopRemains:
    """What is on this loop before clients are made, and again when they have ended."""

    def __init__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        self._loop = loop
        self._sockets = len(self._loop._selector.get_map())
        self._tasks = len(asyncio.all_tasks())

    async def check(self, where: object = "") -> None:
        gc.collect()
        names = [task.get_name() for task in asyncio.all_tasks()]
        await eventually(lambda: len(asyncio.all_tasks()) <= self._tasks, NEXT_S, f"tasks end, {where}: {names}")
        await eventually(lambda: len(self._loop._selector.get_map()) <= self._sockets, NEXT_S, f"sockets, {where}")


async def steps_of(call: Callable[[], Awaitable[Any]]) -> range:
    """Each wait of a call."""
    stepped = Stepped()
    await stepped.run(_coroutine(call))
    return range(stepped.steps)


async def _coroutine(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def struck(call: Callable[[], Awaitable[Any]], at: int, act: Callable[[asyncio.Task[Any]], object]) -> Any:
    """Run a call in a task that is struck at its n-th wait; what it returns, None where it was cut off or refused."""

    async def work() -> Any:
        return await Stepped(at, act).run(_coroutine(call))

    this = asyncio.current_task()
    assert this is not None
    this.set_name(TEST)
    try:
        async with asyncio.timeout(3 * NEXT_S):
            return await asyncio.create_task(work())
    except (asyncio.CancelledError, RaylogError):
        return None


@pytest.mark.parametrize("act", list(ACTS))
@pytest.mark.parametrize("name", list(MAKERS))
async def test_a_start_and_a_stop_are_struck_at_any_await(world: World, name: str, act: str) -> None:
    topic, remains = filled(world, 3), LoopRemains()

    def make() -> Any:  # in a group of its own: a member that was cut off keeps its partitions for its session
        return MAKERS[name](world.options, topic, world.name())

    async def life() -> None:
        async with make() as client:
            if name == "consumer":
                assert await client.getmany(timeout_ms=WAIT_MS)
            if name == "queue":
                await client.getone(timeout_ms=0)
            if name == "producer":
                await client.send(topic, b"x")

    await life()
    for at in spread(await steps_of(life)):
        await struck(life, at, ACTS[act])
        await remains.check((name, act, at))


@pytest.mark.parametrize("act", list(ACTS))
async def test_a_producers_calls_are_struck_at_any_await(world: World, act: str) -> None:
    topic, other, remains = world.topic(2), world.topic(), LoopRemains()
    sent: list[bytes] = []
    async with AsyncProducer(**world.options, linger_ms=1) as producer:

        async def call() -> None:
            value = b"%d" % len(sent)
            sent.append(value)
            await producer.send_and_wait(topic, value)
            await producer.flush(NEXT_S)
            await producer.partitions_for(other)

        await call()
        for at in spread(await steps_of(call)):
            await struck(call, at, ACTS[act])
            sent.append(b"after %d" % at)
            assert (await asyncio.wait_for(producer.send_and_wait(topic, sent[-1]), NEXT_S)).offset >= 0
        await producer.flush(NEXT_S)
        assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory
    await remains.check(act)
    values = await asyncio.to_thread(stored, world, topic)
    assert len(values) == len(set(values))
    assert {value for value in sent if value.startswith(b"after")} <= set(values)


@pytest.mark.parametrize("act", list(ACTS))
async def test_a_consumers_calls_are_struck_at_any_await(world: World, act: str) -> None:
    topic, remains = filled(world), LoopRemains()
    here = TopicPartition(topic, 0)
    options = {**world.options, "group_id": world.name(), "auto_offset_reset": "earliest"}
    async with AsyncConsumer(topic, **options) as consumer:
        seen = [(await consumer.getone()).offset]

        async def call() -> None:
            seen.append((await consumer.getone()).offset)
            await consumer.commit()
            consumer.seek(here, seen[-1] + 1)
            for records in (await consumer.getmany(timeout_ms=WAIT_MS, max_records=1)).values():
                seen.extend(record.offset for record in records)

        for at in spread(await steps_of(call)):
            await struck(call, at, ACTS[act])
            assert await consumer.position(here) == seen[-1] + 1
            record = await asyncio.wait_for(consumer.getone(), 2 * NEXT_S)
            seen.append(record.offset)
        assert seen == list(range(len(seen)))
    await remains.check(act)


@pytest.mark.parametrize("act", list(ACTS))
async def test_a_queues_calls_are_struck_at_any_await(world: World, act: str) -> None:
    topic, remains = filled(world), LoopRemains()
    finished: list[int] = []
    async with AsyncQueueConsumer(topic, **world.options, group_id=world.name(), lock="10s") as queue:

        async def call() -> None:
            message = await queue.getone(timeout_ms=WAIT_MS)
            if message is not None:
                message.ack()
                finished.append(message.offset)
            with suppress(InvalidRecordState):  # a lock was lost with the fetch that was cut off
                await queue.commit(timeout_s=NEXT_S)

        await call()
        for at in spread(await steps_of(call)):
            await struck(call, at, ACTS[act])
            await asyncio.wait_for(call(), 3 * NEXT_S)
        while len(set(finished)) < RECORDS and (more := await queue.getmany(timeout_ms=3 * WAIT_MS)):
            for message in more:
                message.ack()
                finished.append(message.offset)
        with suppress(InvalidRecordState):
            await queue.commit()
    assert sorted(set(finished)) == list(range(RECORDS))
    await remains.check(act)


@pytest.mark.parametrize("act", list(ACTS))
async def test_an_admins_calls_are_struck_at_any_await(world: World, act: str) -> None:
    topic, remains = world.topic(), LoopRemains()
    async with AsyncAdmin(**world.options) as admin:

        async def call() -> None:
            await admin.describe_topic(topic)
            await admin.list_groups()
            await admin.delete_records({TopicPartition(topic, 0): 0})

        for at in spread(await steps_of(call)):
            await struck(call, at, ACTS[act])
            assert topic in await asyncio.wait_for(admin.list_topics(), NEXT_S)
    await remains.check(act)


async def _produced(client: AsyncProducer, topic: str) -> None:
    first = await client.send(topic, b"x", partition=0)
    last = await client.send_and_wait(topic, b"y", partition=0)
    assert (await first).offset < last.offset


async def _consumed(client: AsyncConsumer, topic: str) -> None:
    assert (await client.getone()).offset == 0
    await client.commit()
    assert await client.committed(TopicPartition(topic, 0)) == 1


async def _worked_off(client: AsyncQueueConsumer, topic: str) -> None:
    for _ in range(3):
        message = await client.getone(timeout_ms=2 * WAIT_MS)
        assert message is not None
        message.ack()
    with suppress(InvalidRecordState):  # a lock was lost with the fetch that was cut off
        await client.commit()


async def _administered(client: AsyncAdmin, topic: str) -> None:
    assert topic in await client.list_topics()
    await client.describe_topic(topic)


async def _prepared(client: AsyncHalfMessageProducer, topic: str) -> None:
    half = await client.prepare(topic, b"x")
    await half.commit()


USES: dict[str, Callable[[Any, str], Awaitable[None]]] = {
    "producer": _produced,
    "consumer": _consumed,
    "queue": _worked_off,
    "admin": _administered,
    "half": _prepared,
}


@pytest.mark.parametrize("name", list(USES))
async def test_any_task_of_a_client_is_cancelled_at_any_await(world: World, name: str) -> None:
    """The caller's own task is not, and its calls work all the same."""
    topic, remains = filled(world, 3), LoopRemains()

    async def life(at: int = -1) -> int:
        client = MAKERS[name](world.options, topic, world.name())
        with StruckTasks(at) as strike:
            try:
                async with asyncio.timeout(3 * NEXT_S), client:
                    await USES[name](client, topic)
            except (RaylogError, TimeoutError, AssertionError) as error:
                raise AssertionError(f"{error!r}, where a task was cancelled: {strike.place}") from error
        await remains.check((name, at, strike.place))
        return strike.steps

    await life()
    for at in spread(range(await life())):
        await life(at)
