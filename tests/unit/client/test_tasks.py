"""Tasks that begin again, ends that go on, and waits that several share."""

import asyncio
from functools import partial

import pytest

from raylog.client.tasks import Ending, LastingTask, outcome
from raylog.core.errors import ClientClosed, ConnectionFailed
from tests.waiting import eventually


class Work:
    """Counts how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.over = asyncio.Event()

    async def run(self) -> None:
        self.begun += 1
        await self.over.wait()


async def test_what_was_cancelled_from_outside_begins_again() -> None:
    work = Work()
    lasting = LastingTask(work.run, "work")
    await asyncio.sleep(0)
    lasting.task.cancel()
    await eventually(lambda: work.begun == 2)
    assert not lasting.done()
    work.over.set()
    await eventually(lasting.done)


async def test_what_was_cancelled_by_its_owner_does_not() -> None:
    work = Work()
    lasting = LastingTask(work.run, "work")
    await asyncio.sleep(0)
    lasting.task.cancel()
    await asyncio.wait([lasting.task])
    await asyncio.sleep(0)
    lasting.cancel()  # while it waits to begin again
    assert lasting.done()
    assert work.begun == 1


async def test_an_end_that_is_cut_off_goes_on_without_its_first_part() -> None:
    ending, first, closed = Ending(), Work(), asyncio.Event()

    async def close() -> None:
        await asyncio.sleep(0)
        closed.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ending.run(close, first.run), 0.01)
    await asyncio.wait_for(ending.run(close, first.run), 5)
    assert closed.is_set()
    assert first.begun == 1


async def test_an_end_that_a_framework_cancels_is_begun_again() -> None:
    ending = Ending()
    closes: list[asyncio.Task[None]] = []

    async def close() -> None:
        this = asyncio.current_task()
        assert this is not None
        closes.append(this)
        await asyncio.sleep(0.01 if len(closes) > 1 else 60)

    waiting = asyncio.create_task(ending.run(close))
    await eventually(lambda: len(closes) == 1)
    closes[0].cancel()
    await asyncio.wait_for(waiting, 5)
    assert len(closes) == 2


async def test_the_end_of_a_shared_task_is_no_cancellation_of_its_waiters() -> None:
    for answer, expected in (([], ConnectionFailed), ([1], ClientClosed)):
        shared = asyncio.create_task(asyncio.sleep(60))
        waiting = asyncio.create_task(outcome(shared, partial(bool, answer), "tried"))
        await asyncio.sleep(0)
        shared.cancel()
        with pytest.raises(expected, match="tried"):
            await waiting


async def test_a_waiter_that_is_cancelled_leaves_the_shared_task() -> None:
    shared = asyncio.create_task(asyncio.sleep(0.05, 7))
    waiting = asyncio.create_task(outcome(shared, lambda: False, "tried"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await shared == 7
