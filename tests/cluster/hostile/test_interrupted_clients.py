"""An exception at any step of a call of any client: what was not returned comes again, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

import pytest

from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.halves.producer import HalfMessageProducer
from raylog.client.producer.producer import Producer
from raylog.client.queues.consumer import QueueConsumer
from raylog.client.workers.pool import WorkerPool
from raylog.core.ids import TopicPartition
from tests.cluster.hostile.striking import MANY, Interrupt, Strike, passes_on, spread
from tests.cluster.hostile.world import NEXT_S, Remains, World
from tests.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore")  # of what an interrupted call has left, and the next one closes
RECORDS = 60
WAIT_MS = NEXT_S * 1_000


def filled(world: World, count: int = RECORDS) -> str:
    """A topic with so many records."""
    topic = world.topic()
    with Producer(**world.options) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, b"%d" % (number % 3), partition=0)
    return topic


CLIENTS: dict[str, Callable[[dict[str, Any], str, str], Any]] = {
    "producer": lambda options, _, __: Producer(**options),
    "consumer": lambda options, topic, group: Consumer(topic, **options, group_id=group),
    "queue": lambda options, topic, group: QueueConsumer(topic, **options, group_id=group),
    "admin": lambda options, _, __: Admin(**options),
    "half": lambda options, _, group: HalfMessageProducer(group, None, **options),
}


@pytest.mark.parametrize("name", list(CLIENTS))
def test_making_and_closing_a_client_is_interrupted_anywhere(world: World, name: str) -> None:
    make, topic, group, remains = CLIENTS[name], world.topic(), world.name(), Remains()
    make(world.options, topic, group).close()
    with Strike(MANY) as measured:
        make(world.options, topic, group).close()
    for at in spread(measured.passed):
        strike = Strike(at)
        with suppress(Interrupt), strike:
            make(world.options, topic, group).close()
        remains.check(strike.place)


def test_a_hand_out_of_a_queue_is_interrupted_anywhere(world: World) -> None:
    topic, remains = filled(world), Remains()
    calls: dict[str, Callable[[QueueConsumer], Any]] = {
        "poll": lambda queue: queue.poll(WAIT_MS, max_records=2),
        "getone": lambda queue: [queue.getone(WAIT_MS)],
        "next": lambda queue: [next(queue)],
    }
    for name, call in calls.items():
        group, seen = f"{topic}-{name}", []
        options = {**world.options, "group_id": group, "lock": "60s", "auto_offset_reset": "earliest"}
        options.pop("auto_offset_reset")
        with QueueConsumer(topic, **options) as queue:
            with Strike(MANY) as measured:
                seen += call(queue)
            for at in spread(measured.passed):
                strike = Strike(at)
                with suppress(Interrupt), strike:
                    seen += call(queue)
                seen += call(queue)
            offsets = [message.offset for message in seen if message is not None]
            assert len(offsets) == len(set(offsets)), name
            for message in seen:
                message.ack()
            while len(seen) < RECORDS and (more := queue.poll(WAIT_MS)):
                seen += more
                for message in more:
                    message.ack()
            queue.commit(NEXT_S)
        assert sorted(message.offset for message in seen) == list(range(RECORDS)), name
    remains.check()


CONSUMED: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(WAIT_MS, max_records=2),
    "next": next,
    "commit": lambda consumer: consumer.commit(),
    "seek": lambda consumer: consumer.seek(consumer.assignment().copy().pop(), 1),
    "position": lambda consumer: consumer.position(consumer.assignment().copy().pop()),
}


@pytest.mark.parametrize("name", list(CONSUMED))
def test_a_call_of_a_consumer_is_interrupted_anywhere(world: World, name: str) -> None:
    call, topic, remains = CONSUMED[name], filled(world), Remains()
    here = TopicPartition(topic, 0)
    with Consumer(topic, **world.options, group_id=world.name(), auto_offset_reset="earliest") as consumer:
        assert consumer.poll(WAIT_MS, max_records=1)
        with Strike(MANY) as measured:
            call(consumer)
        for at in spread(measured.passed):
            consumer.seek(here, 0)
            strike = Strike(at)
            with suppress(Interrupt), strike:
                call(consumer)
            expected = consumer.position(here)
            records = consumer.poll(WAIT_MS, max_records=1)[here]
            assert records[0].offset == expected, strike.place
            assert consumer.position(here) == expected + 1
    remains.check()


def test_a_run_of_a_pool_is_interrupted_anywhere(world: World) -> None:
    topic, group, remains = filled(world), world.name(), Remains()
    options = {**world.options, "group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    handled: set[int] = set()
    for at in spread(300):
        strike = Strike(at * 3)
        with Consumer(topic, **options) as consumer:
            pool = WorkerPool(consumer, lambda record: handled.add(record.offset), workers=2)
            with suppress(Interrupt), strike:
                pool.run(timeout=0.2)
            committed = consumer.committed(TopicPartition(topic, 0)) or 0
            assert set(range(committed)) <= handled, strike.place
            pool.run(timeout=0.05)  # it works again
    remains.check()


passes_on(QueueConsumer.poll, QueueConsumer.getone, QueueConsumer.__next__)


class StrikeIn(Strike):
    """A strike in one function alone, at each of its own steps."""

    def __init__(self, code: CodeType, at: int) -> None:
        super().__init__(at)
        self._code = code

    def _entered(self, frame: FrameType, *rest: object) -> Callable[..., Any] | None:
        return super()._entered(frame, *rest) if frame.f_code is self._code else None


def test_the_workers_of_a_pool_end_wherever_its_run_is_interrupted(world: World) -> None:
    topic, group, remains = filled(world), world.name(), Remains()
    options = {**world.options, "group_id": group, "enable_auto_commit": False}
    code = WorkerPool._run.__code__
    with Consumer(topic, **options) as consumer:
        at = 0
        while True:
            strike = StrikeIn(code, at)
            with suppress(Interrupt), strike:
                WorkerPool(consumer, print, workers=3).run(timeout=0.02)
            wait_for(
                lambda: not [each for each in threading.enumerate() if each.name.startswith("raylog-worker")],
                f"the workers have ended, after {strike.place}",
                NEXT_S,
            )
            if not strike.place:
                break  # all steps were struck
            at += 1
    assert at > 5
    remains.check()
