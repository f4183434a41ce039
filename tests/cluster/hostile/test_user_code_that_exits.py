"""User code that raises what is to end the program, or a class of its own below BaseException, wherever it is called.

The call that has to do with it returns or raises within its deadline, and the clients beside it go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.assignor import PartitionAssignor, Subscription
from raylog.client.consumer.consumer import Consumer
from raylog.client.half_messages.producer import HalfMessageProducer
from raylog.client.producer.producer import Producer
from raylog.client.queues.consumer import QueueConsumer
from raylog.client.workers.pool import WorkerPool
from tests.cluster.hostile.test_interrupted_clients import filled
from tests.cluster.hostile.world import NEXT_S, Remains, World
from tests.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore")
WAIT_MS = NEXT_S * 1_000


class Alarm(BaseException):
    """As libraries have it that interrupt code by a timer: no handler of ordinary errors sees it."""


ERRORS: dict[str, type[BaseException]] = {"exit": SystemExit, "interrupt": KeyboardInterrupt, "own": Alarm}


class Raising:
    """User code that raises once it is called, and counts its calls."""

    error: type[BaseException] = Alarm
    calls = 0

    @classmethod
    def now(cls, *_: Any, **__: Any) -> Any:
        cls.calls += 1
        raise cls.error

    @classmethod
    async def later(cls, *_: Any, **__: Any) -> Any:
        cls.now()


class Assignor(PartitionAssignor):
    """Raises in the leader of a classic group."""

    name = "raising"

    def assign(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        Raising.now()
        return {}


class Noted(PartitionAssignor):
    """Raises where a member learns of its partitions."""

    name = "noted"

    def assign(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        every = [TopicPartition(topic, number) for topic, count in partition_counts.items() for number in range(count)]
        return {min(subscriptions): every}

    def on_assignment(self, partitions: Any, generation: int) -> None:
        Raising.now()


class Interceptor:
    """Raises where there is no caller to raise to."""

    on_acknowledgement = staticmethod(Raising.now)
    on_commit = staticmethod(Raising.now)


def _run(world: World, topic: str, handler: Any, **more: Any) -> None:
    with QueueConsumer(topic, **world.options, group_id=world.name(), consumer_timeout_ms=1_000, **more) as queue:
        queue.run(handler, concurrency=2)


def _polled(world: World, topic: str, **more: Any) -> None:
    options = {**world.options, "group_id": world.name(), "auto_offset_reset": "earliest", **more}
    with Consumer(topic, **options) as consumer:
        consumer.poll(WAIT_MS)


def _listened(world: World, topic: str) -> None:
    with Consumer(**world.options, group_id=world.name()) as consumer:
        consumer.subscribe([topic], on_assigned=Raising.now, on_revoked=Raising.now)
        consumer.poll(WAIT_MS)


def _taken(world: World, topic: str) -> None:
    with QueueConsumer(topic, **world.options, group_id=world.name(), value_deserializer=Raising.now) as queue:
        queue.getone(WAIT_MS)


def _pooled(world: World, topic: str) -> None:
    options = {**world.options, "group_id": world.name(), "auto_offset_reset": "earliest"}
    with Consumer(topic, **options, enable_auto_commit=False) as consumer:
        WorkerPool(consumer, Raising.now, workers=2).run(timeout=NEXT_S)


def _acknowledged(world: World, topic: str, **more: Any) -> None:
    with Producer(**world.options, **more) as producer:
        future = producer.send(topic, b"x")
        future.add_done_callback(Raising.now)
        assert future.result(NEXT_S).offset >= 0


def _committed(world: World, topic: str, **more: Any) -> None:
    options = {**world.options, "group_id": world.name(), "auto_offset_reset": "earliest", **more}
    with Consumer(topic, **options) as consumer:
        consumer.poll(WAIT_MS)
        consumer.commit_async(callback=Raising.now)
        wait_for(lambda: Raising.calls, "the callback was called", NEXT_S)
        consumer.commit()


def _checked(world: World, topic: str, checker: Any) -> None:
    with HalfMessageProducer(world.name(), checker, **world.options, check_after="100ms") as producer:
        half = producer.prepare(topic, b"x")
        wait_for(lambda: Raising.calls, "the checker was called", 3 * NEXT_S)
        half.rollback(NEXT_S)


CASES: dict[str, Callable[[World, str], None]] = {
    "handler of a queue": lambda world, topic: _run(world, topic, Raising.now),
    "coroutine of a queue": lambda world, topic: _run(world, topic, Raising.later),
    "deserializer of a queue": _taken,
    "deserializer of a consumer": lambda world, topic: _polled(world, topic, value_deserializer=Raising.now),
    "assignor": lambda world, topic: _polled(
        world, topic, group_protocol="classic", partition_assignment_strategy=[Assignor]
    ),
    "assignor that is notified": lambda world, topic: _polled(
        world, topic, group_protocol="classic", partition_assignment_strategy=[Noted]
    ),
    "listener": _listened,
    "worker of a pool": _pooled,
    "callback of a record": _acknowledged,
    "interceptor of a producer": lambda world, topic: _acknowledged(world, topic, interceptors=[Interceptor()]),
    "callback of a commit": _committed,
    "interceptor of a consumer": lambda world, topic: _committed(world, topic, interceptors=[Interceptor()]),
    "checker": lambda world, topic: _checked(world, topic, Raising.now),
    "coroutine of a checker": lambda world, topic: _checked(world, topic, Raising.later),
}


@pytest.mark.parametrize("error", list(ERRORS))
@pytest.mark.parametrize("name", list(CASES))
def test_it_ends_its_call_and_nothing_else(world: World, name: str, error: str) -> None:
    topic, other, remains = filled(world, 3), world.topic(), Remains()
    Raising.error, Raising.calls = ERRORS[error], 0

    def call() -> None:
        with suppress(BaseException):  # what comes out of it is of each client; that it comes out is of all
            CASES[name](world, topic)

    options = {**world.options, "group_id": world.name(), "auto_offset_reset": "earliest"}
    with Producer(**world.options) as producer, Consumer(other, **options) as consumer:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(6 * NEXT_S)
        assert not thread.is_alive(), "the call stands still"
        assert Raising.calls, "the user's code was called"
        assert producer.send(other, b"after").result(NEXT_S).offset >= 0
        wait_for(lambda: consumer.poll(200), "a consumer beside it goes on", NEXT_S)
    remains.check(name)


@pytest.mark.parametrize("error", list(ERRORS))
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_record_whose_handler_has_exited_is_handed_out_again(world: World, kind: str, error: str) -> None:
    topic, group = filled(world, 3), world.name()
    Raising.error, Raising.calls = ERRORS[error], 0
    with (
        QueueConsumer(topic, **world.options, group_id=group, lock="60s") as queue,
        pytest.raises(ERRORS[error]),
    ):
        queue.run(Raising.now if kind == "thread" else Raising.later, concurrency=1)
    with QueueConsumer(topic, **world.options, group_id=group) as other:
        seen: set[int] = set()

        def all_came() -> bool:
            seen.update(each.offset for each in other.poll(500))
            return len(seen) == 3

        wait_for(all_came, "all records come, before their locks have run out", 2 * NEXT_S)
