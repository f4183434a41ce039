"""A queue's consumer that is closed while its `run` works: handlers end first, and no record is handled twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from raylog.client.queues.consumer import QueueConsumer
from tests.cluster.hostile.striking import Interrupt
from tests.cluster.hostile.test_interrupted_clients import filled
from tests.cluster.hostile.world import NEXT_S, Remains, World
from tests.waiting import wait_for


class Runner:
    """A consumer whose `run` works in a thread, with a handler that waits until it is released."""

    def __init__(self, world: World, topic: str, group: str) -> None:
        self.begun: list[int] = []
        self.release = threading.Event()
        self.errors: list[BaseException] = []
        self.consumer = QueueConsumer(topic, **world.options, group_id=group, lock="5s")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def handle(self, message: Any) -> None:
        self.begun.append(message.offset)
        assert self.release.wait(4 * NEXT_S)

    def _run(self) -> None:
        try:
            self.consumer.run(self.handle, concurrency=4)
        except BaseException as error:  # shown by the test, which runs on another thread
            self.errors.append(error)

    def join(self) -> None:
        self._thread.join(2 * NEXT_S)
        assert not self._thread.is_alive()


def rest(world: World, topic: str, group: str) -> list[int]:
    """What another member of the group gets."""
    with QueueConsumer(topic, **world.options, group_id=group) as other:
        return sorted(message.offset for message in other.poll(1_500))


def test_a_close_waits_for_the_handlers(world: World) -> None:
    topic, group, remains = filled(world, 8), world.name(), Remains()
    runner = Runner(world, topic, group)
    wait_for(lambda: len(runner.begun) == 4, "four handlers run", NEXT_S)
    threading.Timer(1.0, runner.release.set).start()
    runner.consumer.close(timeout=4 * NEXT_S)
    assert runner.release.is_set()
    runner.join()
    assert not runner.errors
    left = rest(world, topic, group)
    assert sorted({*runner.begun, *left}) == list(range(8))
    assert not set(runner.begun) & set(left)
    remains.check()


def test_a_close_gives_up_a_handler_that_hangs(world: World, caplog: pytest.LogCaptureFixture) -> None:
    topic, group = filled(world, 4), world.name()
    runner = Runner(world, topic, group)
    wait_for(lambda: len(runner.begun) == 4, "four handlers run", NEXT_S)
    began_s = time.monotonic()
    runner.consumer.close(timeout=0.5)
    assert time.monotonic() - began_s < 2 * NEXT_S
    assert "their records are given back, and may be handled twice" in caplog.text
    assert rest(world, topic, group) == [0, 1, 2, 3]
    runner.release.set()
    runner.join()


@pytest.mark.parametrize("ends", [lambda consumer: consumer.close(NEXT_S), lambda consumer: consumer.end()])
def test_a_handler_may_end_its_own_consumer(world: World, ends: Callable[[QueueConsumer], None]) -> None:
    topic, remains = filled(world, 3), Remains()
    consumer = QueueConsumer(topic, **world.options, group_id=world.name())
    began_s = time.monotonic()
    try:
        consumer.run(lambda _: ends(consumer))
    finally:
        consumer.close(NEXT_S)
    assert time.monotonic() - began_s < 3 * NEXT_S
    remains.check()


def test_ctrl_c_ends_a_run_at_once_and_gives_the_records_back(world: World) -> None:
    topic, group = filled(world, 2), world.name()
    consumer = QueueConsumer(topic, **world.options, group_id=group, lock="60s")
    release, begun = threading.Event(), threading.Event()

    def handle(_: Any) -> None:
        begun.set()
        release.wait(4 * NEXT_S)

    wait = consumer._runtime.begin(consumer._asynchronous.run(handle, concurrency=2))
    assert begun.wait(NEXT_S)
    wait.cancel()  # as Ctrl-C does with the call of the main thread
    with pytest.raises((Interrupt, BaseException)):
        wait.result(NEXT_S)
    consumer.close(NEXT_S)
    assert rest(world, topic, group) == [0, 1]
    release.set()
