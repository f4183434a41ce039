"""How often a replica wakes up."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from raylog.actors import timer as ticks
from raylog.actors.clock import monotonic_ms

LONG_MS = 60_000
PATIENCE_S = 20.0


class CallbackWaiter:
    """A tick function that notes the times of its calls, and returns the next due time."""

    def __init__(self, next_ms: Callable[[int], int]) -> None:
        self.at_ms: list[int] = []
        self.ticked = asyncio.Event()
        self._next_ms = next_ms

    def tick(self, latest_ms: int) -> int:
        self.at_ms.append(monotonic_ms())
        self.ticked.set()
        return self._next_ms(latest_ms)

    async def again(self) -> None:
        """Wait for the next tick."""
        self.ticked.clear()
        await asyncio.wait_for(self.ticked.wait(), PATIENCE_S)


@pytest.fixture(autouse=True)
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "LONGEST_MS", LONG_MS)


def play(next_ms: Callable[[int], int], story: Callable[[CallbackWaiter, ticks.TickTimer], object]) -> list[int]:
    """Let a story happen while something ticks; when it did."""

    async def played() -> list[int]:
        waiter = CallbackWaiter(next_ms)
        clock = ticks.TickTimer(waiter.tick)
        running = asyncio.create_task(clock.run())
        try:
            await asyncio.wait_for(waiter.ticked.wait(), PATIENCE_S)
            await story(waiter, clock)  # type: ignore[misc]  # a coroutine function
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        return waiter.at_ms

    return asyncio.run(played())


def test_due_work_is_ticked_for_at_most_once_in_the_shortest_pause() -> None:
    async def story(waiter: CallbackWaiter, _: ticks.TickTimer) -> None:
        await waiter.again()
        await waiter.again()

    first, second, third = play(lambda _: 0, story)
    assert min(second - first, third - second) >= ticks.SHORTEST_MS - 1


def test_at_rest_nothing_happens_until_it_is_hastened() -> None:
    async def story(waiter: CallbackWaiter, clock: ticks.TickTimer) -> None:
        assert len(waiter.at_ms) == 1
        clock.hasten()
        await waiter.again()

    assert len(play(lambda latest: latest, story)) == 2


def test_what_is_due_later_than_the_next_tick_does_not_delay_it() -> None:
    async def story(waiter: CallbackWaiter, clock: ticks.TickTimer) -> None:
        clock.hasten(10)
        clock.hasten(LONG_MS - 1)
        await waiter.again()

    assert len(play(lambda latest: latest, story)) == 2
