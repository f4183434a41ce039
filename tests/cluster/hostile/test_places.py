"""A client in another process, on another loop, in two threads or tasks, pickled or dropped: it says what to do."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from raylog.base.errors import ClientClosed, ConcurrentUse, RaylogError
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import AsyncProducer, Producer
from raylog.client.queues.consumer import QueueConsumer
from raylog.client.workers.pool import WorkerPool
from tests.cluster.hostile.test_cancelled_clients import MAKERS, LoopRemains
from tests.cluster.hostile.test_interrupted_clients import CLIENTS, filled
from tests.cluster.hostile.world import NEXT_S, Remains, World

CALLS: dict[str, Callable[[Any, str], Any]] = {
    "producer": lambda client, topic: client.send(topic, b"x").result(NEXT_S),
    "consumer": lambda client, _: client.poll(100),
    "queue": lambda client, _: client.poll(100),
    "admin": lambda client, _: client.list_topics(),
    "half": lambda client, topic: client.prepare(topic, b"x").rollback(),
}
ASYNC_CALLS: dict[str, Callable[[Any, str], Any]] = {
    "producer": lambda client, topic: client.send(topic, b"x"),
    "consumer": lambda client, _: client.getmany(timeout_ms=100),
    "queue": lambda client, _: client.getmany(timeout_ms=100),
    "admin": lambda client, _: client.list_topics(),
    "half": lambda client, topic: client.prepare(topic, b"x"),
}


@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_client_is_not_pickled_nor_copied(world: World, name: str) -> None:
    client = CLIENTS[name](world.options, world.topic(), world.name())
    try:
        for attempt in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="Make it where it is used, in the task, actor or child process"):
                attempt(client)
    finally:
        client.close()


def test_the_future_of_a_record_is_not_pickled(world: World) -> None:
    with Producer(**world.options) as producer:
        future = producer.send(world.topic(), b"x")
        with pytest.raises(TypeError, match=r"Return its result\(\) instead"):
            pickle.dumps(future)


def _in_child(work: Callable[[], Any], answers: Any) -> None:
    began_s = time.monotonic()
    try:
        work()
        answers.put(("", time.monotonic() - began_s))
    except RaylogError as error:
        answers.put((str(error), time.monotonic() - began_s))


def in_child(work: Callable[[], Any]) -> str:
    """What a call raises in a forked child; it does not take long."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(work, answers))
    child.start()
    child.join(4 * NEXT_S)
    try:
        assert child.exitcode is not None, "the child hangs"
    finally:
        child.kill()
    assert child.exitcode == 0
    text, _ = answers.get()
    return str(text)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_client_in_a_forked_child_says_so_at_once(world: World, name: str) -> None:
    topic = world.topic()
    client = CLIENTS[name](world.options, topic, world.name())
    try:
        text = in_child(lambda: CALLS[name](client, topic))
        assert "fork" in text
        assert "make a new one" in text
        assert in_child(client.close) == ""
        assert in_child(lambda: Admin(**world.options).close()) == ""
    finally:
        client.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_record_of_the_parent_is_not_waited_for_in_a_child(world: World) -> None:
    topic = world.topic()
    with Producer(**world.options, linger_ms=30_000) as producer:
        future = producer.send(topic, b"x")
        for call in (future.result, lambda: future.add_done_callback(print), lambda: producer.flush(NEXT_S)):
            assert "fork" in in_child(call)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_a_client_on_another_loop_says_so_at_once(world: World, name: str, ended: bool) -> None:
    topic = world.topic()
    client = MAKERS[name](world.options, topic, world.name())
    first = asyncio.new_event_loop()
    first.run_until_complete(client.start())
    if ended:
        first.run_until_complete(asyncio.sleep(0))
        first.close()

    async def use() -> None:
        with pytest.raises(ClientClosed, match="was started on another event loop"):
            await asyncio.wait_for(ASYNC_CALLS[name](client, topic), NEXT_S)
        with pytest.raises(ClientClosed, match="another event loop"):
            await asyncio.wait_for(client.stop(), NEXT_S)

    asyncio.run(use())
    if not ended:
        first.run_until_complete(client.stop())
        first.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_records_of_a_loop_that_has_ended_have_failed(world: World) -> None:
    topic = world.topic()

    async def send() -> tuple[AsyncProducer, Any]:
        producer = AsyncProducer(**world.options, linger_ms=60_000)
        await producer.start()
        return producer, await producer.send(topic, b"x")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        producer, future = asyncio.run(send())
        with pytest.raises(ClientClosed):
            asyncio.run(producer.stop())
        assert isinstance(future.exception(0), ClientClosed)
        gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_client_that_is_dropped_warns_and_leaves_nothing(world: World, name: str) -> None:
    topic, group, remains = world.topic(), world.name(), Remains()
    clients = [CLIENTS[name](world.options, topic, group)]
    with pytest.warns(ResourceWarning, match="closed"):
        clients.clear()
    remains.check(name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", list(MAKERS))
async def test_an_asyncio_client_that_is_dropped_leaves_nothing(world: World, name: str) -> None:
    topic, group, remains = world.topic(), world.name(), LoopRemains()
    clients = [MAKERS[name](world.options, topic, group)]
    await clients[0].start()
    with pytest.warns(ResourceWarning, match="was not stopped"):
        clients.clear()
    await remains.check(name)


def test_a_second_thread_is_refused_by_what_is_for_one(world: World) -> None:
    topic = world.topic()
    options = {**world.options, "group_id": world.name()}
    with (
        Consumer(topic, **options) as consumer,
        QueueConsumer(topic, **world.options, group_id=world.name()) as queue,
        Consumer(topic, **world.options, group_id=world.name(), enable_auto_commit=False) as pooled,
    ):
        pool = WorkerPool(pooled, print)
        waits: list[tuple[Any, Callable[[], Any]]] = [
            (consumer._one_poll, lambda: consumer.poll(700)),
            (queue._turn, lambda: queue.poll(700)),
            (queue._turn, lambda: queue.getone(700)),
            (pool._turn, lambda: pool.run(timeout=0.7)),
        ]
        for turn, call in waits:
            thread = threading.Thread(target=call)
            thread.start()
            while hasattr(turn, "free"):
                time.sleep(0.001)
            with pytest.raises(ConcurrentUse, match="one"):
                call()
            thread.join()
            call()


@pytest.mark.parametrize("name", ["consumer", "queue"])
async def test_a_second_task_is_refused_by_what_is_for_one(world: World, name: str) -> None:
    topic = filled(world, 1)
    async with MAKERS[name](world.options, topic, world.name()) as client:
        first = asyncio.create_task(client.getmany(timeout_ms=700))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentUse, match="one"):
            await client.getmany(timeout_ms=0)
        await first
        await client.getmany(timeout_ms=0)
