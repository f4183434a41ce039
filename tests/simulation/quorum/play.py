"""Plays of the metadata quorum: random faults from a seed, and the scripted story behind rule R6."""

from __future__ import annotations

import random
from functools import partial

from raylog.base.invariants import InvariantBroken
from raylog.core.quorum import events as ev
from raylog.core.quorum import majority
from tests.simulation.quorum.controller import SimController
from tests.simulation.quorum.disk import Broken
from tests.simulation.quorum.simulation import World

_STORIES_EVERY = 40
"""Every 40th seed plays the scripted stories first."""


def play(seed: int, *, steps: int = 40) -> World:
    """Play one seed: faults for a while, then heal, and a controller must become active. Raises :class:`Broken`.

    In every third seed faults are so frequent that controllers die before they have done much. In every sixth one
    snapshots are taken all the time, and crashes come between their steps.
    """
    draw = random.Random(seed * 7919 + 1)
    hasty, snappy = seed % 3 == 0, seed % 6 == 4
    founders = 3 if snappy else draw.choice([1, 1, 3, 3, 5])
    world = World(seed, founders, spares=draw.choice([0, 2, 3]) if founders < 5 else 1)
    if hasty:
        world.fragile = 0.6
    if snappy:
        world.short, world.torn = 2, 0.3
    elif draw.random() < 0.2:
        world.disks[world.numbers[-1]].holds_data = world.numbers[-1] not in world.founders
    storms = draw.random()
    try:
        if seed % _STORIES_EVERY == 1:
            play_figure_8()
            play_torn(ev.SaveSnapshot)
            play_torn(ev.RestartLog)
        world.start_controller()
        for _ in range(steps):
            world.run(draw.choice([5, 20, 50, 100, 200] if hasty else [5, 30, 100, 400, 1_000]))
            _fault(world, draw, storms)
        _heal(world)
    except InvariantBroken as broken:
        raise Broken(str(broken)) from broken
    return world


def play_figure_8() -> World:
    """The story behind rule R6: an old record on a majority, counted as committed, and overwritten nevertheless.

    X lies on voter 1 alone, then Y of a higher epoch on voter 2 alone. A third leader copies X to voter 3, and
    dies before a record of its own gets there. A fourth one finds Y on voter 2 to be the best log of voters 2 and 3.
    """
    world = World(1, 3)
    world.calm()
    world.chunk, world.quiet, world.short = 1, True, 0
    begin = partial(_begin, world)

    def ends() -> list[int]:
        return [disk.log().end for disk in world.disks.values()]

    first = begin()
    world.run_until(lambda: {*ends(), first.proposer.committed} == {first.proposer.history.end})
    world.run(300)
    common = first.proposer.committed
    world.cut = {2, 3}
    first.decide("X")
    world.run_until(lambda: ends()[0] > common)
    first.die()
    world.run(50)  # messages in flight meet the cut
    world.cut = {1}
    second = begin()
    world.cut = {1, 3}
    world.run_until(lambda: ends()[1] > common)
    second.die()
    world.run(50)
    world.cut = {2}
    third = begin()
    world.run_until(lambda: ends()[2] > common)
    world.cut = {2, 3}
    world.run_until(lambda: third.proposer._voters[1].matched > common)
    world.cut = {1, 2, 3}
    world.run(100)
    third.die()
    world.cut = {1}
    fourth = begin()
    world.run_until(lambda: fourth.proposer.committed > common)
    return world


def play_torn(torn_at: type) -> World:
    """A voter dies while taking a snapshot that conflicts with its own log, which is longer and was never committed.

    The rest of that log must not count as the continuation of the snapshot.
    """
    world = World(1, 3)
    world.calm()
    world.chunk, world.quiet, world.short, world.torn_at = 8, True, 0, (torn_at,)
    begin = partial(_begin, world)

    def decide(controller: SimController, count: int, voter: int) -> None:
        for number in range(count):
            controller.decide(f"{controller.name} says {number}")
        world.run_until(lambda: world.disks[voter].log().end == controller.proposer.history.end)

    first = begin()
    world.run_until(lambda: {disk.log().end for disk in world.disks.values()} == {first.proposer.history.end})
    world.run(300)
    world.cut = {2, 3}
    decide(first, 20, 1)
    first.die()
    world.run(50)
    world.cut = {1}
    second = begin()
    decide(second, 2, 2)
    world.run_until(lambda: second.proposer.committed == second.proposer.history.end)
    second.runner.snapshot_bytes = 0
    world.run_until(lambda: world.disks[2].start == world.disks[3].start == second.proposer.history.start > 0)
    second.runner.snapshot_bytes = 1 << 40
    decide(second, 2, 2)
    world.run_until(lambda: second.proposer.committed == second.proposer.history.end)
    world.torn, world.cut = 1.0, set()
    world.run_until(lambda: world.voters[1] is None)
    second.die()
    world.torn, world.cut = 0.0, {3}
    third = begin()
    world.run_until(lambda: third.proposer.committed == third.proposer.history.end)
    return world


def _begin(world: World) -> SimController:
    controller = world.start_controller()
    world.run_until(lambda: controller.leads)
    return controller


def _fault(world: World, draw: random.Random, storms: float) -> None:
    alive = [controller for controller in world.controllers if controller.alive]
    kind = draw.random()
    number = draw.choice(world.numbers)
    if kind < 0.35 * storms + 0.1:
        world.crash_voter(number, draw.choice([10, 200, 2_000]))
    elif kind < 0.5 and len(world.numbers) > 1:
        world.lose_directory(number)
    elif kind < 0.6 and alive:
        draw.choice(alive).paused_until_ms = world.now_ms + draw.choice([100, 1_000, 4_000])
    elif kind < 0.72 and alive:
        draw.choice(alive).die()
    elif kind < 0.9:
        count = draw.choice([1, 2, 3, 3, 3, 4, 5])
        world.wanted = frozenset(draw.sample(world.numbers, min(count, len(world.numbers))))
    elif kind < 0.95:
        world.cut = {number} if not world.cut else set()
    if sum(controller.alive for controller in world.controllers) < (2 if draw.random() < 0.2 else 1):
        world.start_controller()


def _heal(world: World) -> None:
    if not heal(world):
        return
    size = min(3, len(world.numbers)) if len(world.numbers) != 2 else 1
    world.wanted = frozenset(world.numbers[-size:])
    before = world.decided
    last = world.start_controller()
    world.run(10_000)
    for _ in range(4):  # ends at a promise to a dead candidate, or if it cannot add that broker; Ray starts another
        if not last.alive or set(last.proposer.members) != world.wanted:
            last.die()
            last = world.start_controller()
            world.run(10_000)
    if not last.leads or not last.alive or world.decided <= before:
        raise Broken(f"{last.name} did not get going after all was healed: {last.proposer.phase} {last.end_reason}")
    if set(last.proposer.members) != world.wanted:
        raise Broken(f"{last.name} stays with the voters {last.proposer.members}, and {set(world.wanted)} are wanted")
    world.quiet = True
    world.run(2_000)
    voting = [world.disks[number] for number in world.wanted]
    if len({(disk.start, disk.end(), tuple(disk.batches)) for disk in voting}) > 1:
        raise Broken("the voters' logs are not equal after all was healed and nothing is decided any more")


def heal(world: World) -> bool:
    """End all faults and all controllers; returns False when no progress is possible any more.

    Before that, a controller that was replaced learns so from its voters.
    """
    world.calm()
    world.chunk, world.cut = 8, set()
    for number in world.numbers:
        world.disks[number].holds_data = False
        world.start_voter(number)
    for controller in world.controllers:
        if not controller.leads:
            controller.die()
    world.run(8_000)  # late messages arrive
    leading = [controller for controller in world.controllers if controller.alive and controller.leads]
    if len(leading) > 1:
        raise Broken(f"{[controller.name for controller in leading]} lead at a time, and none of them learns of it")
    for controller in leading:
        controller.die()
    world.run(4_000)
    world.excused = _is_lost(world)
    return not world.excused


def _is_lost(world: World) -> bool:
    """Return whether the best log names voters of which a majority has lost its copies: no progress is allowed then."""
    best = max(world.disks.values(), key=lambda disk: disk.found().history.rank)
    members = best.members()
    intact = [number for number, identity in members.items() if world.disks[number].identity == identity]
    return bool(members) and len(intact) < majority(len(members))
