"""More scripts for the simulator's stories: the histories behind KIP-279, 320 and 966, and three holes of Raylog's own.

``stories.py`` lists the planted bug for which each was written. Their shared parts are in ``stage.py``.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.partition.network import CONTROLLER
from tests.simulation.partition.replica import ReplicaProcess
from tests.simulation.partition.requests import DeleteRequest
from tests.simulation.partition.simulation import Simulation
from tests.simulation.stories.stage import follower_of, isolate, leading_broker

_STEP_US = 5_000


def two_leaders_in_a_row_have_tails(simulation: Simulation) -> None:
    """KIP-279: A leads and is cut off, B leads for a moment and dies, A leads again with its tail.

    Where B's records begin, A has some of an epoch before them. By offsets alone, B would keep records A never had.
    Producers rest before that: if B did not know whether its last records are committed, A could not lead.
    """
    world, network = simulation.world, simulation.network
    first: list[int] = []

    def idle(cut: bool) -> None:
        for producer in simulation.producers:
            for broker in simulation.brokers:
                (network.cut if cut else network.join)(producer.address, broker)

    def cut() -> None:
        idle(False)
        first.append(leading_broker(simulation))
        isolate(simulation, first[0])
        world.after(_STEP_US, wait_for_the_second)

    def wait_for_the_second() -> None:
        other = 3 - first[0]
        process = simulation.processes[other]
        machine = process.machine
        begun = machine.log_end_offset if machine is not None and machine.role == "leader" else 0
        if begun and process.log.entries[-1].epoch == getattr(machine, "leader_epoch", 0):
            assert simulation.logs[first[0]].end > simulation.logs[other].end, "the first leader's tail is too short"
            simulation.logs[other].durable_end = simulation.logs[other].end
            simulation.crash(other, "as the story wants")
            isolate(simulation, first[0], joined=True)
        else:
            world.after(_STEP_US, wait_for_the_second)

    world.at(2_100_000, idle, True)
    world.at(2_500_000, cut)


def a_follower_fetches_from_the_leader_of_another_epoch(simulation: Simulation) -> None:
    """KIP-320: the leader is elected again, and a follower unaware of that continues to fetch from it."""
    world, network = simulation.world, simulation.network

    def between(cut: bool) -> None:
        for source, target in ((1, 2), (2, 1)):
            (network.cut if cut else network.join)(source, target)

    def clog() -> None:
        network.clog(CONTROLLER, 2, 2500)

    world.at(2_500_000, between, True)
    world.at(3_400_000, clog)
    for when in range(3_500_000, 4_200_000, 100_000):
        # It re-registers and leads again, in a new epoch, when the controller sees the loss before it comes back.
        world.at(when, lambda: simulation.links[1].break_off())
    world.at(4_400_000, between, False)


def an_eligible_replica_takes_over(simulation: Simulation, *, wiped: bool = False) -> None:
    """KIP-966: the ISR is below the minimum, its last member dies, and a former member has every record.

    ``wiped``: it has lost its log, and must not lead.
    """
    world, network = simulation.world, simulation.network
    cast: list[int] = []

    def shrink() -> None:
        leader = leading_broker(simulation)
        eligible = min(broker for broker in simulation.brokers if broker != leader)
        cast.extend((leader, eligible))
        isolate(simulation, next(broker for broker in simulation.brokers if broker not in cast))

    def shrink_more() -> None:
        for source, target in (cast, cast[::-1]):
            network.cut(source, target)

    def lose() -> None:
        state = simulation.controller.state
        assert state is not None
        assert (state.isr, state.elr) == ((cast[0],), (cast[1],))
        if wiped:
            simulation.wipe(cast[1])

    def die() -> None:
        simulation.crash(cast[0], "as the story wants")

    world.at(2_500_000, shrink)
    world.at(3_300_000, shrink_more)
    world.at(4_300_000, lose)
    world.at(5_800_000, die)


def the_only_copy_that_may_lead_is_lost(simulation: Simulation) -> None:
    """KIP-966: as above, and the eligible replica has lost its log."""
    an_eligible_replica_takes_over(simulation, wiped=True)


def an_old_order_reaches_a_new_life(simulation: Simulation) -> None:
    """Hole (a): a leader restarts with a shorter log, and a state sent to its earlier life arrives again."""
    world = simulation.world

    def crash() -> None:
        broker = leading_broker(simulation)
        machine, life = simulation.processes[broker].machine, simulation.lives[broker]
        assert machine is not None
        assert machine.state is not None
        incarnation, state = machine.incarnation, machine.state
        simulation.crash(broker, "as the story wants")

        def send() -> None:
            process = simulation.processes[broker]
            if process.life == life:
                world.after(500, send)
            elif process.machine is None:
                process.notified(incarnation, state)

        send()

    world.at(2_500_000, crash)


def a_divergence_comes_twice(simulation: Simulation) -> None:
    """Hole (b): the point of divergence is sent again, after the follower has fetched far beyond it."""
    world, network = simulation.world, simulation.network
    send = network.send
    cut_off: list[int] = []

    def twice(source: int, target: int, deliver: Any, *args: Any) -> bool:
        if getattr(deliver, "__func__", None) is ReplicaProcess.fetch_answered and args[1].diverging is not None:
            world.after(800_000, deliver, *args)
        return send(source, target, deliver, *args)

    network.send = twice  # type: ignore[method-assign]  # the story is about this one message

    def cut() -> None:
        cut_off.append(leading_broker(simulation))
        isolate(simulation, cut_off[0])

    world.at(2_500_000, cut)
    world.at(4_500_000, lambda: isolate(simulation, cut_off[0], joined=True))


def a_zombie_takes_up_an_old_epoch(simulation: Simulation) -> None:
    """Hole (c), in a checker: a leader learns of its election after later epochs have committed more."""
    world = simulation.world

    def pause() -> None:
        leader = leading_broker(simulation)
        heir = min(broker for broker in simulation.brokers if broker != leader)
        simulation.processes[heir].paused_until_us = world.now_us + 2_500_000
        simulation.crash(leader, "as the story wants")

    world.at(2_500_000, pause)


def a_follower_never_reaches_the_new_leader(simulation: Simulation) -> None:
    """A follower keeps its session and loses its links to the others, and then the leader dies."""
    world, network = simulation.world, simulation.network

    def cut() -> None:
        leader, silent = leading_broker(simulation), follower_of(simulation)
        for other in simulation.brokers:
            if other != silent:
                network.cut(other, silent)
                network.cut(silent, other)
        simulation.crash(leader, "as the story wants")

    world.at(2_500_000, cut)


def records_are_deleted_while_a_follower_is_away(simulation: Simulation) -> None:
    """KIP-107: a follower that was away when records were deleted catches up at once, although nothing else happens."""
    world, network = simulation.world, simulation.network
    away: list[int] = []

    def idle() -> None:
        for producer in simulation.producers:
            for broker in simulation.brokers:
                network.cut(producer.address, broker)

    def leave() -> None:
        away.append(follower_of(simulation))
        isolate(simulation, away[0])
        simulation.crash(away[0], "as the story wants")

    def delete() -> None:
        process = simulation.leader()
        assert process is not None
        before = process.log.end - 5
        request = DeleteRequest(client=-200, before=before, leader_epoch=-1, timeout_ms=1000, answer=lambda *_: None)
        process.delete_records(request)

    def come_back() -> None:
        assert simulation.deletions == 1, "the deletion was not answered without the one that is away"
        network.clog(away[0], leading_broker(simulation), 100)
        isolate(simulation, away[0], joined=True)

    world.at(2_500_000, idle)
    world.at(2_800_000, leave)
    world.at(3_600_000, delete)
    world.at(4_600_000, come_back)


def a_resignation_comes_twice(simulation: Simulation) -> None:
    """A leader without an answer repeats its resignation, and is long in sync again when the repetition arrives."""
    world, network = simulation.world, simulation.network
    cast: list[int] = []

    def refuse() -> None:
        cast.append(leading_broker(simulation))
        network.clog(CONTROLLER, cast[0], 1200)
        simulation.refusing_until_us[cast[0]] = world.now_us + 10_000_000
        wait_for_the_heir()

    def wait_for_the_heir() -> None:
        if leading_broker(simulation) == cast[0]:
            world.after(_STEP_US, wait_for_the_heir)
            return
        simulation.refusing_until_us[cast[0]] = world.now_us + 1_100_000
        network.clog(cast[0], CONTROLLER, 2000)
        world.after(2_900_000, in_sync_again)

    def in_sync_again() -> None:
        state = simulation.controller.state
        assert state is not None
        assert cast[0] in state.isr, "the resignation is to find the old leader in sync"

    world.at(2_000_000, refuse)
