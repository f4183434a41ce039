"""`run` with a handler whose verdict is none: the record goes back, and the caller learns why."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from raylog.base.errors import InvalidConfig
from raylog.client.config import QueueConsumerConfig
from raylog.client.queues.message import Lock, QueueMessage, Retry
from raylog.client.queues.running import run_on_loop
from raylog.client.types import Record
from raylog.core.queues import events as ev
from tests.unit.client.cut_off import unborn
from tests.waiting import eventually

WAIT_S = 10.0


class Consumer:
    """Hands out a few messages, and notes what is reported of them."""

    def __init__(self, count: int, key: bytes | None = None) -> None:
        self.config = QueueConsumerConfig(group_id="workers", consumer_timeout_ms=200)
        self.is_ending = False
        self.keeps_order = False
        self.verdicts: list[tuple[int, int, int]] = []
        lock = Lock(cast(Any, self), 0, (1, 1), 0.0, 0.0)
        self.messages = [QueueMessage(Record("jobs", 0, at, 0, key, b"", ()), lock) for at in range(count)]
        self.is_committed = False

    def settle(self, message: QueueMessage, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        self.verdicts.append((message.offset, kind, delay_ms))

    async def getone(self, *, timeout_ms: float | None = None) -> QueueMessage | None:
        await asyncio.sleep(0.001)
        return self.messages.pop(0) if self.messages else None

    async def commit(self) -> None:
        self.is_committed = True


@pytest.mark.parametrize("delay", ["10 minutes", -1])
def test_a_pause_that_is_none_is_refused_and_the_record_given_back(delay: Any) -> None:
    def handler(message: QueueMessage) -> None:
        raise Retry(delay=delay)

    consumer = Consumer(3)
    with pytest.raises(InvalidConfig):
        asyncio.run(run_on_loop(cast(Any, consumer), handler, 1))
    assert consumer.verdicts
    assert {kind for _, kind, _ in consumer.verdicts} == {ev.RELEASE}
    assert consumer.is_committed


def test_a_pause_is_taken() -> None:
    def handler(message: QueueMessage) -> None:
        raise Retry(delay="10m")

    consumer = Consumer(2)
    asyncio.run(run_on_loop(cast(Any, consumer), handler, 1))
    assert consumer.verdicts == [(0, ev.RETRY, 600_000), (1, ev.RETRY, 600_000)]


def test_the_log_shows_where_a_handler_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    def handler(message: QueueMessage) -> None:
        raise TypeError("a fault of the handler")

    asyncio.run(run_on_loop(cast(Any, Consumer(1)), handler, 1))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], TypeError)
    assert "in handler" in caplog.text


@pytest.mark.parametrize("text", ["1s", "1.5h", " 30 m "])
def test_a_pause_given_as_the_reason_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(TypeError, match="give a pause as delay="):
        Retry(text)
    assert str(Retry(text, delay="1s")) == text
    assert str(Retry("1s is not enough")) == "1s is not enough"


async def test_a_handler_that_is_cut_off_before_it_begins_frees_its_place() -> None:
    handled: list[int] = []

    async def handler(message: QueueMessage) -> None:
        handled.append(message.offset)

    consumer = Consumer(3)
    with unborn("_Run._handle_all") as cut:
        await asyncio.wait_for(run_on_loop(cast(Any, consumer), handler, 1), WAIT_S)
    assert cut
    assert handled == [1, 2]
    assert consumer.verdicts == [(0, ev.RELEASE, -1), (1, ev.ACCEPT, -1), (2, ev.ACCEPT, -1)]


async def test_what_waits_behind_a_handler_that_is_cut_off_is_given_back() -> None:
    begun: list[asyncio.Task[Any] | None] = []

    async def handler(message: QueueMessage) -> None:
        begun.append(asyncio.current_task())
        await asyncio.sleep(60)

    consumer = Consumer(3, key=b"k")
    consumer.keeps_order = True
    running = asyncio.create_task(run_on_loop(cast(Any, consumer), handler, 2))
    await eventually(lambda: bool(begun) and not consumer.messages)
    await asyncio.sleep(0.01)  # the last one waits behind the first
    assert begun[0] is not None
    begun[0].cancel()
    await asyncio.wait_for(running, WAIT_S)
    assert sorted(consumer.verdicts) == [(at, ev.RELEASE, -1) for at in range(3)]
