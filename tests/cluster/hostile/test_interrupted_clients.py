"""An exception at any step of a call of any client: what was not returned comes again, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.half_messages.producer import HalfMessageProducer
from raylog.client.producer.producer import Producer
from raylog.client.queues.consumer import QueueConsumer
from raylog.client.queues.message import QueueMessage
from raylog.client.workers.pool import WorkerPool
from tests.cluster.hostile.striking import Interrupt, Measured, Strike, passes_on, spread
from tests.cluster.hostile.world import NEXT_S, PAUSE_S, Remains, World
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
    with Measured() as measured:
        make(world.options, topic, group).close()
    for at in spread(measured.steps):
        strike = Strike(at)
        with suppress(Interrupt), strike:
            make(world.options, topic, group).close()
        remains.check(strike.place)


TAKEN: dict[str, Callable[[QueueConsumer], Any]] = {
    "poll": lambda queue: queue.poll(WAIT_MS, max_records=2),
    "getone": lambda queue: [queue.getone(WAIT_MS)],
    "next": lambda queue: [next(queue)],
}


class Feed:
    """A topic whose records come before a call or while it waits, and what the calls have returned."""

    def __init__(self, producer: Producer, topic: str, queue: QueueConsumer, *, is_before: bool) -> None:
        self.sent = 0
        self.seen: list[int] = []
        self._producer, self._topic, self._queue = producer, topic, queue
        self._is_before = is_before
        self._timer = threading.Thread()

    def come(self) -> None:
        """Have two records come."""
        self.sent += 2
        if not self._is_before:
            self._timer = threading.Timer(0.003, self._send)
            self._timer.start()
            return
        self._send()
        buffer = self._queue._engine.buffer
        wait_for(lambda: len(buffer) == 2, "the records are here", NEXT_S, PAUSE_S)

    def _send(self) -> None:
        self._producer.send_batch(self._topic, [b"x", b"y"], partition=0).result(NEXT_S)

    def take(self, call: Callable[[QueueConsumer], Any]) -> None:
        """Take what is left."""
        if not self._is_before:
            self._timer.join()
        while len(self.seen) < self.sent:
            self.saw(call(self._queue))

    def saw(self, messages: list[QueueMessage]) -> None:
        """Finish what a call has returned."""
        for message in messages:
            self.seen.append(message.offset)
            message.ack()


@pytest.mark.parametrize("is_before", [True, False], ids=["buffered", "awaited"])
@pytest.mark.parametrize("name", list(TAKEN))
def test_a_hand_out_of_a_queue_is_interrupted_anywhere(world: World, name: str, is_before: bool) -> None:
    call, topic, remains = TAKEN[name], world.topic(), Remains()
    options = {**world.options, "group_id": topic, "lock": "60s", "consumer_timeout_ms": WAIT_MS}
    with Producer(**world.options) as producer, QueueConsumer(topic, **options) as queue:
        feed = Feed(producer, topic, queue, is_before=is_before)
        feed.come()
        feed.take(call)
        feed.come()
        with Measured() as measured:
            messages = call(queue)
        feed.saw(messages)
        feed.take(call)
        for at in spread(measured.steps):
            feed.come()
            messages = []
            with suppress(Interrupt), Strike(at):
                messages = call(queue)
            feed.saw(messages)
            feed.take(call)
        queue.commit(NEXT_S)
        assert sorted(feed.seen) == list(range(feed.sent))
    remains.check()


def place_of(consumer: Consumer) -> TopicPartition:
    """The partition that it reads."""
    return consumer.assignment().copy().pop()


CONSUMED: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(WAIT_MS, max_records=2),
    "consume": lambda consumer: consumer.consume(2, NEXT_S),
    "consume_batch": lambda consumer: consumer.consume_batch(2, NEXT_S),
    "next": next,
    "commit": lambda consumer: consumer.commit(),
    "commit_async": lambda consumer: consumer.commit_async(),
    "committed": lambda consumer: consumer.committed(place_of(consumer)),
    "seek": lambda consumer: consumer.seek(place_of(consumer), 1),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(),
    "seek_to_committed": lambda consumer: consumer.seek_to_committed(),
    "position": lambda consumer: consumer.position(place_of(consumer)),
    "pause": lambda consumer: (consumer.pause(place_of(consumer)), consumer.resume(place_of(consumer))),
    "resume": lambda consumer: consumer.resume(place_of(consumer)),
    "group_metadata": lambda consumer: consumer.group_metadata(),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([place_of(consumer)]),
    "end_offsets": lambda consumer: consumer.end_offsets([place_of(consumer)]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({place_of(consumer): 0}),
    "offsets_for_leader_epoch": lambda consumer: consumer.offsets_for_leader_epoch({place_of(consumer): 0}),
    "partitions_for_topic": lambda consumer: consumer.partitions_for_topic(place_of(consumer).topic),
    "topics": lambda consumer: consumer.topics(),
}


def assign(consumer: Consumer, topic: str) -> None:
    """Read a partition without sharing it: not legal beside a subscription."""
    consumer.unsubscribe()
    consumer.assign([TopicPartition(topic, 0)])


ASSIGNING: dict[str, Callable[[Consumer, str], Any]] = {
    "subscribe": lambda consumer, topic: consumer.subscribe([topic]),
    "assign": assign,
    "unsubscribe": lambda consumer, _: consumer.unsubscribe(),
}


@pytest.mark.parametrize("name", list(CONSUMED))
def test_a_call_of_a_consumer_is_interrupted_anywhere(world: World, name: str) -> None:
    call, topic, remains = CONSUMED[name], filled(world), Remains()
    here = TopicPartition(topic, 0)
    with Consumer(topic, **world.options, group_id=world.name(), auto_offset_reset="earliest") as consumer:
        assert consumer.poll(WAIT_MS, max_records=1)
        with Measured() as measured:
            call(consumer)
        for at in spread(measured.steps):
            consumer.seek(here, 0)
            strike = Strike(at)
            with suppress(Interrupt), strike:
                call(consumer)
            consumer.resume(here)
            expected = consumer.position(here)
            records = consumer.poll(WAIT_MS, max_records=1)[here]
            assert records[0].offset == expected, strike.place
            assert consumer.position(here) == expected + 1
    remains.check()


@pytest.mark.parametrize("name", list(ASSIGNING))
def test_a_change_of_what_is_read_is_interrupted_anywhere(world: World, name: str) -> None:
    call, topic, other, remains = ASSIGNING[name], filled(world), filled(world), Remains()
    options = {**world.options, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(other, **options, group_id=world.name()) as consumer:

        def begin() -> None:
            consumer.unsubscribe()
            consumer.subscribe([other])
            assert consumer.poll(WAIT_MS, max_records=1)

        begin()
        with Measured() as measured:
            call(consumer, topic)
        for at in spread(measured.steps):
            begin()
            strike = Strike(at)
            with suppress(Interrupt), strike:
                call(consumer, topic)
            consumer.unsubscribe()
            consumer.subscribe([topic])
            records = consumer.poll(WAIT_MS, max_records=1)
            assert [each[0].offset for each in records.values()] == [0], strike.place
            assert {each.topic for each in consumer.assignment()} == {topic}
    remains.check()


def test_a_run_of_a_pool_is_interrupted_anywhere(world: World) -> None:
    topic, remains = filled(world), Remains()
    here = TopicPartition(topic, 0)
    options = {**world.options, "auto_offset_reset": "earliest", "enable_auto_commit": False}

    def run(strike: Measured) -> None:
        handled: set[int] = set()
        with Consumer(topic, **options, group_id=world.name()) as consumer:
            assert consumer.poll(WAIT_MS, max_records=1)
            consumer.seek(here, 0)
            pool = WorkerPool(consumer, lambda record: handled.add(record.offset), workers=2)
            with suppress(Interrupt), strike:
                pool.run(timeout=0.05)
            committed = consumer.committed(here) or 0
            assert set(range(committed)) <= handled, getattr(strike, "place", "")
            pool.run(timeout=0.02)  # it works again

    measured = Measured()
    run(measured)
    for at in spread(measured.steps):
        run(Strike(at))
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
