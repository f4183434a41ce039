"""Tasks that begin again, ends that go on, and waits that several share."""

import asyncio
from functools import partial
from typing import Any

import pytest

from raylog.base.errors import ClientClosed, ConnectionFailed
from raylog.client.tasks import Ending, LastingTask, outcome, outcomes, side_by_side
from tests.unit.client.cut_off import unborn
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


class Part:
    """A part of a call: it waits until all are there, or fails."""

    def __init__(self, *failing: int) -> None:
        self.tasks: list[tuple[int, asyncio.Task[None] | None]] = []
        self.over = asyncio.Event()
        self._failing = failing

    async def do(self, number: int) -> int:
        self.tasks.append((number, asyncio.current_task()))
        if number in self._failing:
            raise ClientClosed(f"{number} fails")
        await self.over.wait()
        return 10 * number


@pytest.mark.parametrize("wait", [side_by_side, outcomes])
async def test_a_part_that_something_else_cancels_begins_again(wait: Any) -> None:
    part = Part()
    call = asyncio.create_task(wait(part.do, [1, 2]))
    await eventually(lambda: len(part.tasks) == 2)
    cut = part.tasks[1][1]
    assert cut is not None
    cut.cancel()
    part.over.set()
    assert await asyncio.wait_for(call, 5) == [10, 20]
    assert [number for number, _ in part.tasks] == [1, 2, 2]


async def test_a_part_that_is_cancelled_before_it_begins_does_begin() -> None:
    with unborn("Part.do") as cut:
        part = Part()
        part.over.set()
        assert await asyncio.wait_for(side_by_side(part.do, [1, 2]), 5) == [10, 20]
    assert cut


async def test_the_first_error_of_a_part_ends_the_others() -> None:
    part = Part(2)
    with pytest.raises(ClientClosed, match="2 fails"):
        await asyncio.wait_for(side_by_side(part.do, [1, 2, 3]), 5)
    await eventually(lambda: all(task is not None and task.done() for _, task in part.tasks))


async def test_an_error_that_a_part_returns_is_its_result() -> None:
    async def answer(number: int) -> int | ClientClosed:
        return ClientClosed("as a broker that does not answer") if number == 2 else number

    first, second = await side_by_side(answer, [1, 2])
    assert first == 1
    assert isinstance(second, ClientClosed)


async def test_each_part_has_its_outcome() -> None:
    part = Part(2)
    part.over.set()
    first, second = await outcomes(part.do, [1, 2])
    assert first == 10
    assert isinstance(second, ClientClosed)
    assert await outcomes(part.do, []) == []


async def test_the_end_of_a_wait_for_parts_ends_them() -> None:
    part = Part()
    call = asyncio.create_task(outcomes(part.do, [1, 2]))
    await eventually(lambda: len(part.tasks) == 2)
    call.cancel()
    await asyncio.wait([call], timeout=5)
    assert call.cancelled()
    await eventually(lambda: all(task is not None and task.cancelled() for _, task in part.tasks))


async def test_a_part_that_cancels_itself_is_an_error_of_the_call() -> None:
    async def give_up(_: int) -> None:
        raise asyncio.CancelledError

    with pytest.raises(ConnectionFailed):
        await asyncio.wait_for(side_by_side(give_up, [1]), 5)
