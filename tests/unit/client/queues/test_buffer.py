"""What is locked ahead at a consumer: lanes, their room, and when a lower topic may go on. Messages are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.queues import buffer as buffering
from raylog.client.queues.buffer import MessageBuffer
from raylog.client.queues.message import Lock, QueueMessage
from raylog.client.queues.priorities import turns_of
from raylog.client.types import Record

HIGH, LOW = TopicPartition("high", 0), TopicPartition("low", 0)


def messages(partition: TopicPartition, count: int, source: Any = None) -> list[QueueMessage]:
    lock = Lock(cast(Any, source), 0, (1, 1), 0.0, 0.0)
    return [QueueMessage(Record(*partition, offset, 0, None, b"", ()), lock) for offset in range(count)]


def at_once(function: Callable[[], object]) -> None:
    function()


def made(priority: Any, most: int = 10, on_change: Callable[[], object] = lambda: None) -> MessageBuffer:
    found = MessageBuffer(
        most,
        turns_of(priority, ["high", "low"]),
        {"high": 0, "low": 1},
        call_on_loop=at_once,
        on_change=on_change,
    )
    found.begins(HIGH)
    found.begins(LOW)
    return found


def taken(buffer: MessageBuffer) -> str:
    """The topics of what can be taken now, as their first letters."""
    found = ""
    while (message := buffer.pop()) is not None:
        found += message.topic[0]
    return found


async def is_done(waiting: Awaitable[object]) -> bool:
    """Whether something ends within the next turns of the loop."""
    task = asyncio.ensure_future(waiting)
    for _ in range(5):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return ended


def test_messages_come_as_they_arrive_without_a_priority() -> None:
    async def story() -> None:
        buffer = made(None)
        buffer.put(LOW, messages(LOW, 2))
        buffer.put(HIGH, messages(HIGH, 1))
        buffer.put(LOW, messages(LOW, 1))
        assert taken(buffer) == "llhl"

    asyncio.run(story())


def test_a_lower_topic_waits_until_the_higher_one_has_nothing() -> None:
    async def story() -> None:
        buffer = made("strict")
        buffer.put(LOW, messages(LOW, 2))
        is_ready = buffer.is_ready
        assert not is_ready
        assert taken(buffer) == "", "it is not known yet that the higher topic is empty"
        assert buffer.wait_ms(HIGH, 500) == 0, "so its leader is to answer at once"
        buffer.put(HIGH, messages(HIGH, 2))
        assert taken(buffer) == "hh", "it may have more: the lower one waits on"
        buffer.dry(HIGH)
        assert buffer.wait_ms(HIGH, 500) == 500
        assert buffer.is_ready
        assert taken(buffer) == "ll"

    asyncio.run(story())


def test_a_higher_topic_whose_leader_fails_or_is_silent_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        buffer = made("strict")
        buffer.put(LOW, messages(LOW, 1))
        with pytest.raises(ConnectionError), buffer.fetching(HIGH):
            raise ConnectionError
        assert taken(buffer) == "l"
        monkeypatch.setattr(buffering, "UNKNOWN_MAX_S", 0.01)
        changed = asyncio.Event()
        silent = made("strict", on_change=changed.set)
        silent.put(LOW, messages(LOW, 1))
        changed.clear()
        with silent.fetching(HIGH):
            async with asyncio.timeout(10):
                await changed.wait()
            assert taken(silent) == "l"

    asyncio.run(story())


def test_lower_topics_fetch_only_while_the_higher_ones_have_nothing() -> None:
    async def story() -> None:
        buffer = made("strict", most=20)
        assert await is_done(buffer.room(HIGH))
        assert not await is_done(buffer.room(LOW))
        waiting = asyncio.ensure_future(buffer.room(LOW))
        await asyncio.sleep(0)
        buffer.put(HIGH, messages(HIGH, 1))
        buffer.dry(HIGH)
        assert not await is_done(asyncio.shield(waiting)), "one is still here"
        assert taken(buffer) == "h"
        assert await waiting == 10, "half of what may be locked ahead"
        assert buffer.is_behind(LOW) is False

    asyncio.run(story())


def test_a_lane_has_room_again_when_half_of_it_was_taken_or_given_back() -> None:
    async def story() -> None:
        buffer = made([3, 1], most=40)
        source = object()
        buffer.put(HIGH, messages(HIGH, 30))
        buffer.put(LOW, messages(LOW, 10, source))
        assert not await is_done(buffer.room(HIGH))
        assert not await is_done(buffer.room(LOW))
        assert [cast(QueueMessage, buffer.pop()).topic for _ in range(16)].count("low") == 4
        assert not await is_done(buffer.room(HIGH))
        assert len(buffer.take_out([cast(Any, source)])) == 6
        assert await buffer.room(LOW) == 10
        assert {message.topic for message in buffer} == {"high"}
        assert taken(buffer) == "h" * 18
        assert await buffer.room(HIGH) == 30

    asyncio.run(story())
