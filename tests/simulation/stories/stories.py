"""Scripted stories: faults at chosen moments on the simulator's cluster, for cases too rare in random schedules.

Each story passes on the unmodified machines, and fails with the planted bug for which it was written.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.partition.network import CONTROLLER
from tests.simulation.partition.simulation import Simulation
from tests.simulation.profiles import Faults
from tests.simulation.stories.scripts import (
    a_divergence_comes_twice,
    a_follower_fetches_from_the_leader_of_another_epoch,
    a_follower_never_reaches_the_new_leader,
    a_resignation_comes_twice,
    a_zombie_takes_up_an_old_epoch,
    an_old_order_reaches_a_new_life,
    records_are_deleted_while_a_follower_is_away,
    the_only_copy_that_may_lead_is_lost,
    two_leaders_in_a_row_have_tails,
)
from tests.simulation.stories.stage import faults, follower_of, isolate, leading_broker
from tests.simulation.world import Violation

Script = Callable[[Simulation], None]


def retention_overtakes_a_cut_off_leader(simulation: Simulation) -> None:
    """Found with the simulator: the new leader drops all it had in common with the old one, and a little more.

    Truncated to the new leader's log start, the old one kept records of its own below it, which counted as committed.
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
        simulation.checks.deleted.requested(parting + 3)
        process.drop_below(parting + 3)
        isolate(simulation, broker, joined=True)

    world.at(2_500_000, cut)
    world.at(5_000_000, drop_and_join)


def the_last_man_crashes_and_comes_back_last(simulation: Simulation) -> None:
    """KIP-966: the ISR shrinks to the leader alone, which continues and dies; no other may lead until it is back."""
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
    """KIP-101: follower and leader restart one after the other, before the follower learns of the high watermark."""
    world = simulation.world
    for when in range(2_000_000, 6_000_000, 400_000):
        for delay, broker in enumerate(simulation.brokers):
            world.at(when + delay * 40_000, simulation.crash, broker, "as the story wants")


def a_fetch_outlives_its_sender(simulation: Simulation) -> None:
    """A follower loses its disk while its fetch is in flight, and the fetch arrives after its next life begins."""
    world, network = simulation.world, simulation.network

    def idle() -> None:
        for producer in simulation.producers:
            network.cut(producer.address, leading_broker(simulation))

    def clog() -> None:
        network.clog(follower_of(simulation), leading_broker(simulation), 1500)

    world.at(2_500_000, idle)
    world.at(3_000_000, clog)
    world.at(3_300_000, lambda: simulation.wipe(follower_of(simulation)))


def an_isr_proposal_outlives_the_life_it_names(simulation: Simulation) -> None:
    """A follower catches up, loses its disk, and re-registers before the controller learns that it caught up."""
    world, network = simulation.world, simulation.network

    def crash() -> None:
        network.clog(leading_broker(simulation), CONTROLLER, 1500)
        simulation.crash(follower_of(simulation), "as the story wants")

    def wipe() -> None:
        network.cut(follower_of(simulation), leading_broker(simulation))
        simulation.wipe(follower_of(simulation))

    world.at(2_500_000, crash)
    world.at(3_300_000, wipe)


def a_registration_is_not_answered(simulation: Simulation, effects: int) -> None:
    """The only replica registers, the controller dies before its answer, and the replica registers again.

    Its log was new the first time and is not lost the second time. ``effects``: number of effects before the controller
    dies.
    """
    simulation.controller.crash_after_effects = effects


STORIES: tuple[tuple[Script, Faults, str], ...] = (
    (
        retention_overtakes_a_cut_off_leader,
        faults(min_insync_replicas=1, producers=3, acks_one=1.0),
        "histories are compared beyond what retention left",
    ),
    (
        the_last_man_crashes_and_comes_back_last,
        faults(min_insync_replicas=1, down_ms=1500),
        "any replica may lead when no ISR member is there",
    ),
    (
        both_fall_in_turn,
        faults(min_insync_replicas=1, down_ms=60, fetch_wait_ms=400),
        "a new follower truncates to its high watermark",
    ),
    (
        a_fetch_outlives_its_sender,
        faults(min_insync_replicas=2, down_ms=50, fetch_wait_ms=100),
        "a leader takes fetches of a follower's earlier lives",
    ),
    (
        an_isr_proposal_outlives_the_life_it_names,
        faults(min_insync_replicas=2, down_ms=100, session_timeout_ms=3000),
        "an ISR change does not say which life of a member it means",
    ),
    (
        two_leaders_in_a_row_have_tails,
        faults(brokers=2, min_insync_replicas=2, producers=3, acks_one=1.0, down_ms=1000),
        "histories are compared by their ends alone",
    ),
    (
        a_follower_fetches_from_the_leader_of_another_epoch,
        faults(brokers=2, min_insync_replicas=1),
        "a leader takes fetches of other epochs",
    ),
    (
        the_only_copy_that_may_lead_is_lost,
        faults(min_insync_replicas=2, down_ms=400),
        "an eligible replica leads though it lost its log",
    ),
    (
        an_old_order_reaches_a_new_life,
        faults(min_insync_replicas=2, down_ms=300),
        "a replica obeys states sent to its earlier lives",
    ),
    (
        a_divergence_comes_twice,
        faults(min_insync_replicas=1, producers=3, acks_one=1.0),
        "fetch answers are not matched to the request",
    ),
    (
        records_are_deleted_while_a_follower_is_away,
        faults(min_insync_replicas=1, down_ms=100),
        "a follower joins the ISR with an older log start",
    ),
    (
        a_resignation_comes_twice,
        faults(chaos_s=8, session_timeout_ms=4000),
        "a resignation from an earlier epoch counts",
    ),
    (
        a_follower_never_reaches_the_new_leader,
        faults(chaos_s=12, min_insync_replicas=2, down_ms=300),
        "a follower that never fetched never lags",
    ),
    (
        a_zombie_takes_up_an_old_epoch,
        faults(min_insync_replicas=1, down_ms=3000),
        "a checker requires of a zombie what later epochs committed",
    ),
)


STORY_OF = {bug: (script, options) for script, options, bug in STORIES}
"""The story that catches a planted bug, by the bug's name."""


def play(script: Script, options: Faults) -> Violation | None:
    """Play a story to its end or to the first violation."""
    simulation = Simulation(1, options, validate=False)
    script(simulation)
    try:
        simulation.run()
    except Violation as found:
        return found
    return None
