"""Starts need permits: as many at once as a machine bears, shared by its brokers."""

import asyncio
from collections.abc import Callable

import pytest

from raylog.actors.processes.replica_factory import PERMITS_MIN, StartPermits

STARTS = 20


class Starts:
    """Starts with permits, each until it is ended."""

    def __init__(self, total: int, sharing: Callable[[], int]) -> None:
        self.permits = StartPermits(total, sharing)
        self.going: list[int] = []
        self.ends = [asyncio.Event() for _ in range(STARTS)]
        self.tasks = [asyncio.create_task(self._start(number)) for number in range(STARTS)]

    async def _start(self, number: int) -> None:
        async with self.permits.permit():
            self.going.append(number)
            await self.ends[number].wait()
            self.going.remove(number)

    async def end(self, number: int) -> None:
        self.ends[number].set()
        await self.tasks[number]
        await settle()

    async def end_all(self) -> None:
        for event in self.ends:
            event.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("sharing", "at_once"), [(1, 12), (2, 6), (3, 4), (9, PERMITS_MIN)])
async def test_the_brokers_of_a_machine_share_its_permits(sharing: int, at_once: int) -> None:
    starts = Starts(12, lambda: sharing)
    await settle()
    assert starts.going == list(range(at_once))
    await starts.end_all()


async def test_a_turn_goes_to_the_one_that_has_waited_longest() -> None:
    starts = Starts(2, lambda: 1)
    await settle()
    await starts.end(1)
    assert starts.going == [0, 2]
    await starts.end(0)
    assert starts.going == [2, 3]
    await starts.end_all()


async def test_when_a_broker_leaves_the_others_have_its_permits() -> None:
    brokers = 2
    starts = Starts(4, lambda: brokers)
    await settle()
    assert starts.going == [0, 1]
    brokers = 1
    await starts.end(0)
    assert starts.going == [1, 2, 3, 4]
    await starts.end_all()


async def test_a_start_that_is_given_up_leaves_its_permit() -> None:
    starts = Starts(2, lambda: 1)
    await settle()
    for number in (2, 0):  # one that waits, and one that has a permit
        starts.tasks[number].cancel()
    await settle()
    assert 3 in starts.going
    await starts.end_all()
