"""How long a stop of the cluster waits for partitions to fall asleep."""

import asyncio
from collections.abc import Iterator
from itertools import chain, count, cycle, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.actors.controller import server
from raylog.actors.controller.server import ControllerServer

PARTITIONS = 10


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REST_QUIET_S", 0.1)
    monkeypatch.setattr(server, "REST_LOOK_S", 0.001)


async def put_to_sleep(asleep: Iterator[int], within_s: float = 30.0) -> list[int]:
    """What is answered when so many sleep at each look."""

    def looks() -> list[int]:
        now = next(asleep)
        return [now, PARTITIONS - now]

    controller: Any = SimpleNamespace(_running=lambda: SimpleNamespace(rest=lambda: None), asleep_and_awake=looks)
    return await asyncio.wait_for(ControllerServer.put_to_sleep(controller, within_s), 10)


async def test_it_ends_when_all_sleep() -> None:
    assert await put_to_sleep(iter(range(PARTITIONS + 1))) == [PARTITIONS, 0]


async def test_it_ends_when_no_more_fall_asleep() -> None:
    assert await put_to_sleep(chain(range(7), repeat(6))) == [6, 4]


async def test_partitions_in_use_that_wake_again_do_not_keep_it_waiting() -> None:
    asleep, _ = await put_to_sleep(chain(range(7), cycle((5, 6))))
    assert asleep in {5, 6}


async def test_it_waits_no_longer_than_it_may() -> None:
    asleep, _ = await put_to_sleep((number // 1_000 for number in count()), within_s=0.05)
    assert asleep < PARTITIONS
