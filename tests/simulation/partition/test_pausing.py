"""A paused process of the simulator takes the waiting messages in order of arrival, as a stopped process does."""

from __future__ import annotations

import pytest

from tests.simulation.partition.pausing import Pausable
from tests.simulation.runs import run_seed
from tests.simulation.world import World

pytestmark = pytest.mark.sim


class Reader(Pausable):
    """Records its calls and their times."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.taken: list[tuple[int, str]] = []

    def take(self, what: str) -> None:
        if not self.waits(self.take, what):
            self.taken.append((self.world.now_us, what))


def paused_reader() -> tuple[World, Reader]:
    world = World(1)
    reader = Reader(world)
    reader.paused_until_us = 3_000_000
    for when, what in ((1_500_000, "answer"), (1_600_000, "state"), (3_500_000, "later")):
        world.at(when, reader.take, what)
    return world, reader


def test_what_arrives_during_a_pause_is_taken_in_order_at_its_end() -> None:
    world, reader = paused_reader()
    world.run_until(4_000_000)
    assert reader.taken == [(3_000_000, "answer"), (3_000_000, "state"), (3_500_000, "later")]


def test_a_pause_that_ends_early_lets_nothing_overtake_what_waited() -> None:
    world, reader = paused_reader()
    world.at(2_000_000, reader.wake)
    world.at(2_000_000, reader.take, "news")
    world.run_until(4_000_000)
    assert [what for _, what in reader.taken] == ["answer", "state", "news", "later"]
    assert reader.taken[0][0] == 2_000_000


def test_a_process_that_ends_in_a_pause_takes_nothing() -> None:
    world, reader = paused_reader()
    world.at(2_000_000, reader.forget_inbox)
    world.run_until(3_200_000)
    assert reader.taken == []


def test_a_replica_paused_in_its_registration_receives_the_next_leader() -> None:
    """The answer to its registration waited, and the state that followed it was dropped: it stayed in the old epoch."""
    result = run_seed(700001, "swarm")
    assert result.violation is None, "\n".join(result.story)
