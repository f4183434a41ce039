"""A step of the machine's clock is followed when most brokers have it, and only as it is at that moment."""

import asyncio
from typing import Any, cast

import pytest

from raylog.actors.roles import time_of_day
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.time_of_day import TimeOfDay

HOUR_MS = 3_600_000


class Machine:
    """A host whose clock can be set, with two other brokers."""

    partition = "t-0"

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.ahead_ms = 0
        self.others_ahead_ms = 0
        self.set_right_meanwhile = False
        self.is_alone = False
        self.jumped_ms = 0
        """How far the clock has jumped, as this process has seen it."""

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms

    def wall_ms(self) -> int:
        return self.ms + self.ahead_ms

    def trusted_ms(self) -> int:
        return self.wall_ms() - self.jumped_ms

    async def clocks(self) -> tuple[list[int], int]:
        if self.is_alone:
            return [], 1
        if self.set_right_meanwhile:
            self.ahead_ms = self.others_ahead_ms = 0
        return [self.wall_ms(), *[self.ms + self.others_ahead_ms] * 2], 3


async def after_a_look(machine: Machine, monkeypatch: Any) -> int:
    """How far the time is ahead of the monotonic clock after a look at the other brokers' clocks."""
    monkeypatch.setattr(time_of_day, "STEP_LOOK_S", 0)
    clock = TimeOfDay(cast(RoleHost, machine))
    machine.ahead_ms = HOUR_MS
    stepped: list[int] = []
    following = asyncio.ensure_future(clock.follow(lambda: stepped.append(1)))
    for _ in range(5):
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return clock.now_ms() - machine.ms


async def test_a_step_alone_is_not_followed(monkeypatch: Any) -> None:
    assert abs(await after_a_look(Machine(), monkeypatch)) < 1_000


async def test_a_step_of_all_is_followed(monkeypatch: Any) -> None:
    machine = Machine()
    machine.others_ahead_ms = HOUR_MS
    assert abs(await after_a_look(machine, monkeypatch) - HOUR_MS) < 1_000


async def test_a_step_that_ends_meanwhile_is_not_followed(monkeypatch: Any) -> None:
    machine = Machine()
    machine.set_right_meanwhile = True
    assert abs(await after_a_look(machine, monkeypatch)) < 1_000


@pytest.mark.parametrize("jumped_ms", [HOUR_MS, -HOUR_MS])
async def test_without_others_a_jump_that_the_process_has_seen_does_not_count(jumped_ms: int) -> None:
    machine = Machine()
    machine.is_alone = True
    machine.ahead_ms = machine.jumped_ms = jumped_ms
    clock = TimeOfDay(cast(RoleHost, machine))
    await clock.set(wait_ms=0)
    assert abs(clock.now_ms() - machine.ms) < 1_000


async def test_without_others_the_clock_of_a_process_that_saw_no_jump_counts() -> None:
    machine = Machine()
    machine.is_alone = True
    machine.ahead_ms = HOUR_MS
    clock = TimeOfDay(cast(RoleHost, machine))
    await clock.set(wait_ms=0)
    assert abs(clock.now_ms() - machine.wall_ms()) < 1_000


@pytest.mark.parametrize(("behind_ms", "expected_ms"), [(HOUR_MS, 0), (-HOUR_MS, HOUR_MS)])
async def test_a_clock_that_began_alone_takes_over_that_of_most_brokers(
    behind_ms: int, expected_ms: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(time_of_day, "STEP_LOOK_S", 0)
    machine = Machine()
    machine.is_alone = True
    machine.ahead_ms = -behind_ms
    clock = TimeOfDay(cast(RoleHost, machine))
    await clock.set(wait_ms=0)
    machine.is_alone = False
    stepped: list[int] = []
    following = asyncio.ensure_future(clock.follow(lambda: stepped.append(1)))
    for _ in range(5):
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert abs(clock.now_ms() - machine.ms - expected_ms) < 1_000
    assert len(stepped) == (behind_ms > 0)
