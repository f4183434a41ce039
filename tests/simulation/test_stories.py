"""Scripted stories: faults at chosen moments on the simulator's cluster, for what random schedules meet too rarely.

Each story passes on the machines as they are, and fails with the planted bug that it was written against.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.network import CONTROLLER
from tests.simulation.planted import COMPARES_WHAT_RETENTION_DROPPED, PLANTED, Planted
from tests.simulation.profiles import Faults
from tests.simulation.simulation import Simulation
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

Script = Callable[[Simulation], None]


def leading_broker(simulation: Simulation) -> int:
    state = simulation.controller.state
    assert state is not None
    return state.leader


def isolate(simulation: Simulation, broker: int, *, joined: bool = False) -> None:
    """Cut a broker off from the controller and the other brokers, not from clients; or join it again."""
    network = simulation.network
    for other in (CONTROLLER, *(other for other in simulation.brokers if other != broker)):
        for source, target in ((broker, other), (other, broker)):
            if joined:
                network.join(source, target)
            else:
                network.cut(source, target)


def retention_overtakes_a_cut_off_leader(simulation: Simulation) -> None:
    """Found with the simulator: the new leader drops all it had in common with the old one, and a little more.

    Cut to the new leader's log start, the old one kept records of its own below it, which passed for committed.
    """
    world = simulation.world
    cut_off: list[int] = []

    def cut() -> None:
        cut_off.append(leading_broker(simulation))
        cut_off.append(simulation.logs[cut_off[0]].end)
        isolate(simulation, cut_off[0])

    def drop_and_join() -> None:
        broker, parting = cut_off
        assert simulation.logs[broker].end > parting + 3, "the old leader has no tail of its own"
        process = simulation.leader()
        assert process is not None
        assert process.broker != broker
        process.drop_below(parting + 3)
        isolate(simulation, broker, joined=True)

    world.at(2_500_000, cut)
    world.at(5_000_000, drop_and_join)


def the_last_man_crashes_and_comes_back_last(simulation: Simulation) -> None:
    """KIP-966: the ISR shrinks to the leader alone, which goes on and dies; nobody else may lead until it is back."""
    world = simulation.world
    last: list[int] = []

    def cut() -> None:
        last.append(leading_broker(simulation))
        for other in simulation.brokers:
            if other != last[0]:
                simulation.network.cut(last[0], other)
                simulation.network.cut(other, last[0])

    def crash() -> None:
        state = simulation.controller.state
        assert state is not None
        assert state.isr == (last[0],)
        simulation.crash(last[0], "as the story wants")

    world.at(2_500_000, cut)
    world.at(6_000_000, crash)


def both_fall_in_turn(simulation: Simulation) -> None:
    """KIP-101: follower and leader restart one after the other, before the follower hears of the high watermark."""
    world = simulation.world
    for when in range(2_000_000, 6_000_000, 400_000):
        for delay, broker in enumerate(simulation.brokers):
            world.at(when + delay * 40_000, simulation.crash, broker, "as the story wants")


def faults(**options: float) -> Faults:
    calm = {
        "brokers": 3,
        "chaos_s": 6,
        "converge_s": 6,
        "lag_max_ms": 300,
        "session_timeout_ms": 300,
        "produce_pause_ms": 5,
    }
    return Faults(**(calm | options))  # type: ignore[arg-type]  # counts are whole numbers in every story


def bug(name: str) -> Planted:
    return next(planted for planted in PLANTED if planted.name == name)


STORIES: tuple[tuple[Script, Faults, Planted], ...] = (
    (
        retention_overtakes_a_cut_off_leader,
        faults(min_insync_replicas=1, producers=3, acks_one=1.0),
        COMPARES_WHAT_RETENTION_DROPPED,
    ),
    (
        the_last_man_crashes_and_comes_back_last,
        faults(min_insync_replicas=1, down_ms=1500),
        bug("anybody may lead when no ISR member is there"),
    ),
    (
        both_fall_in_turn,
        faults(min_insync_replicas=1, down_ms=60, fetch_wait_ms=400),
        bug("a new follower truncates to its high watermark"),
    ),
)


def play(script: Script, options: Faults) -> Violation | None:
    simulation = Simulation(1, options, validate=False)
    script(simulation)
    try:
        simulation.run()
    except Violation as found:
        return found
    return None


@pytest.mark.parametrize(("script", "options", "planted"), STORIES, ids=[script.__name__ for script, _, _ in STORIES])
def test_a_story_ends_well_and_only_without_its_bug(script: Script, options: Faults, planted: Planted) -> None:
    assert play(script, options) is None
    with planted.applied():
        found = play(script, options)
    assert found is not None
    assert found.rule in planted.rules, found
