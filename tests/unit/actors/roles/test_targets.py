"""Calls of roles to other brokers: what is tried again at once, and which time it is by them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from raylog.actors.forwarding.places import Place
from raylog.actors.roles import targets as targets_module
from raylog.actors.roles.targets import Targets
from raylog.actors.routes import Route
from raylog.base.errors import NotLeaderOrFollower, RaylogError, RecordTooLarge
from raylog.protocol.broker import ClockReply
from raylog.protocol.replica import ProduceReply
from raylog.rpc import Reply

TO = Place("later", "a" * 32, 0)
AWAKE = NotLeaderOrFollower("later-0 is awake; refresh the metadata.", leader=[2, 7, "127.0.0.1", 9_000])
ELSEWHERE = NotLeaderOrFollower("later-0 is led elsewhere; refresh the metadata.")
for refusal in (AWAKE, ELSEWHERE):
    refusal.is_remote = True


class Leaders:
    """Stands for the network: each call to a leader meets the next of some outcomes."""

    def __init__(self, *outcomes: RaylogError | Reply) -> None:
        self.outcomes = list(outcomes)
        self.look_ups = self.forgotten = 0

    async def leader(self, _: Any) -> Route:
        self.look_ups += 1
        connection: Any = self
        return Route(connection, self.look_ups, self._forget)

    def _forget(self) -> None:
        self.forgotten += 1

    async def call(self, *_: object, **__: object) -> Reply:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, RaylogError):
            raise outcome
        return outcome


def targets(leaders: Leaders) -> Targets:
    routes: Any = leaders
    return Targets(routes)


STORED = Reply(msgspec.Raw(msgspec.msgpack.encode(ProduceReply(5, 0))), memoryview(b""))


async def test_a_call_that_has_woken_a_partition_goes_on_at_once() -> None:
    leaders = Leaders(AWAKE, STORED)
    await targets(leaders).send(TO, b"batch")
    assert (leaders.look_ups, leaders.forgotten) == (2, 1), "after a pause it might be asleep again"


async def test_a_partition_that_moves_on_and_on_is_left_to_the_role() -> None:
    leaders = Leaders(AWAKE, AWAKE, STORED)
    with pytest.raises(NotLeaderOrFollower):
        await targets(leaders).send(TO, b"batch")
    assert leaders.look_ups == 2


@pytest.mark.parametrize("refusal", [ELSEWHERE, RecordTooLarge("too large")])
async def test_other_refusals_are_left_to_the_role(refusal: RaylogError) -> None:
    leaders = Leaders(refusal, STORED)
    with pytest.raises(type(refusal)):
        await targets(leaders).send(TO, b"batch")
    assert leaders.look_ups == 1


class Clocks:
    """Stands for brokers: each states its time; that on port 2 is silent until the time of this process is another."""

    def __init__(self, clock: list[int], silent_ms: int) -> None:
        self._clock = clock
        self._silent_ms = silent_ms
        self._others = asyncio.Event()

    async def connect(self, place: tuple[str, int]) -> Any:
        brokers = self

        class Connection:
            async def call(self, *_: object, **__: object) -> Reply:
                if place[1] == 2:
                    await brokers._others.wait()
                    brokers._clock[0] += brokers._silent_ms
                    raise ConnectionResetError("it was cut off")
                stated = ClockReply(1_000_000 + brokers._clock[0])
                brokers._clock[0] += 10  # on its way
                brokers._others.set()
                return Reply(msgspec.Raw(msgspec.msgpack.encode(stated)), memoryview(b""))

        return Connection()


async def test_a_time_is_of_now_however_long_another_broker_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [500]
    monkeypatch.setattr(targets_module, "monotonic_ms", lambda: clock[0])
    brokers: Any = Clocks(clock, silent_ms=900)
    found = await Targets(brokers).clocks([("host", 1), ("host", 2)])
    assert found == [1_000_000 + clock[0] - 10 + 5], "half of the 10 ms were the reply's"
