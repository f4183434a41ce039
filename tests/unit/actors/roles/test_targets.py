"""Calls of roles to the leaders of other partitions: what is tried again at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raylog.actors.forwarding.places import Place
from raylog.actors.roles.targets import Targets
from raylog.actors.routes import Route
from raylog.core.errors import NotLeaderOrFollower, RaylogError, RecordTooLarge
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
