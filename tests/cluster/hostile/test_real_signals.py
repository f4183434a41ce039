"""Signals of the system at moments of their own, in a thread that sends, polls or takes from a queue all the time."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import pytest

from raylog.base.errors import ConcurrentUse
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from tests.cluster.hostile.striking import POINTS, Interrupt
from tests.cluster.hostile.test_interrupted_clients import filled
from tests.cluster.hostile.test_interrupted_producers import stored
from tests.cluster.hostile.world import NEXT_S, Remains, World

SHOTS = 500 if POINTS == "all" else 10 * int(POINTS)
PAUSE_S = 0.02


@contextmanager
def signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[threading.Event]:
    """Send SIGUSR1 to this process again and again; the event is set behind the last."""
    over = threading.Event()
    chance = random.Random(7)

    def send() -> None:
        for _ in range(SHOTS):
            time.sleep(chance.uniform(0, PAUSE_S))
            os.kill(os.getpid(), signal.SIGUSR1)
        over.set()

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=send, daemon=True)
    try:
        thread.start()
        yield over
    finally:
        while thread.is_alive():
            with suppress(Interrupt):
                thread.join()
        signal.signal(signal.SIGUSR1, before)


class Fuse:
    """A handler that raises while it is armed: elsewhere the test itself would be interrupted."""

    def __init__(self) -> None:
        self._is_armed = False

    def handle(self, *_: object) -> None:
        if self._is_armed:
            raise Interrupt

    def __enter__(self) -> None:
        self._is_armed = True

    def __exit__(self, *_: object) -> None:
        self._is_armed = False


@pytest.mark.parametrize("kind", ["flush", "send", "metrics"])
def test_a_handler_uses_the_producer_that_it_interrupts(world: World, kind: str) -> None:
    topic, remains = world.topic(), Remains()
    refused = used = 0
    with Producer(**world.options, batch_size=300) as producer:

        def handle(*_: object) -> None:
            nonlocal refused, used
            try:
                if kind == "flush":
                    producer.flush(NEXT_S)
                elif kind == "send":
                    producer.send(topic, b"handler", partition=0)
                else:
                    producer.metrics()
                used += 1
            except ConcurrentUse:
                refused += 1

        with signals(handle) as over:
            while not over.is_set():
                producer.send(topic, b"x" * 10, key=b"k", partition=0)
        producer.flush(4 * NEXT_S)
        assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory
    assert used
    remains.check()


@pytest.mark.filterwarnings("ignore")
def test_an_exception_at_any_moment_loses_no_record_that_has_a_future(world: World) -> None:
    topic, remains = world.topic(), Remains()
    sent: list[bytes] = []

    fuse = Fuse()
    with Producer(**world.options, batch_size=300) as producer:
        number = 0
        with signals(fuse.handle) as over:
            while not over.is_set():
                with suppress(Interrupt), fuse:
                    number += 1
                    value = b"%d" % number
                    producer.send(topic, value, partition=0)
                    sent.append(value)
        producer.flush(4 * NEXT_S)
    values = stored(world, topic)
    assert len(values) == len(set(values))
    assert set(sent) <= set(values)
    remains.check()


@pytest.mark.filterwarnings("ignore")
def test_an_exception_at_any_moment_skips_no_record_of_a_consumer(world: World) -> None:
    topic, remains = filled(world, 3_000), Remains()
    seen: list[int] = []

    fuse = Fuse()
    with Consumer(topic, **world.options, auto_offset_reset="earliest") as consumer:
        with signals(fuse.handle) as over:
            while not over.is_set():
                with suppress(Interrupt), fuse:
                    found = consumer.poll(20, max_records=7)
                    seen += [record.offset for records in found.values() for record in records] if found else []
        while seen[-1] < 2_999:
            for records in consumer.poll(NEXT_S * 1_000).values():
                seen += [record.offset for record in records]
    # A signal may come between a poll's return and the list: what is in it never goes back, nor is a poll seen in part.
    assert seen == sorted(set(seen))
    remains.check()
