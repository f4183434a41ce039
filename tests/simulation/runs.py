"""One seed of one profile, in the profile's world, and its result.

Eight worlds are simulated: partitions with their controller (``partition``), consumer groups (``groups``) and those of
the consumer protocol (``consumers``), the metadata's voters (``quorum``), controllers on their voters (``metadata``),
the log on a virtual disk (``storage``), the outbox on a database in memory (``outbox``), and the whole cluster with its
clients (``whole``). Called by the command,
the stories and the tests.
"""

from __future__ import annotations

import gc
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from raylog.base.invariants import InvariantBroken
from tests.simulation.consumers import faults as consumer_faults
from tests.simulation.consumers.simulation import ConsumerSimulation
from tests.simulation.groups import faults as group_faults
from tests.simulation.groups.simulation import GroupSimulation
from tests.simulation.limits import limited
from tests.simulation.metadata.world import play as play_metadata
from tests.simulation.outbox.runs import OUTBOX, run_outbox
from tests.simulation.partition.simulation import Simulation
from tests.simulation.profiles import PROFILES, Faults, draw_faults, profile_of
from tests.simulation.quorum.disk import Broken
from tests.simulation.quorum.play import play as play_quorum
from tests.simulation.results import Result
from tests.simulation.storage.runs import STORAGE_PROFILES, run_storage
from tests.simulation.stories.stories import STORIES as SCRIPTS
from tests.simulation.whole.plan import WHOLE_PROFILES
from tests.simulation.whole.runs import run_whole
from tests.simulation.world import Violation

REBALANCE_STORM = "rebalance-storm"
REBALANCE_COOPERATIVE = "rebalance-cooperative"
GROUP_TRANSACTIONS = "group-transactions"
VOTERS = "voters"
METADATA = "metadata"
CONSUMER_GROUPS = "consumer-groups"
STORIES = "stories"
"""The scripted stories of partitions, one a seed, for what is too rare in random schedules."""
GROUP_PROFILES = {
    REBALANCE_STORM: group_faults.draw,
    REBALANCE_COOPERATIVE: group_faults.draw_cooperative,
    GROUP_TRANSACTIONS: group_faults.draw_transactions,
}
"""The profiles of the group world, and what draws their options."""
ALL = "all"
ALL_PROFILES = tuple(
    sorted(
        (
            *PROFILES,
            *GROUP_PROFILES,
            CONSUMER_GROUPS,
            METADATA,
            OUTBOX,
            *STORAGE_PROFILES,
            STORIES,
            VOTERS,
            *WHOLE_PROFILES,
        )
    )
)
"""Every profile of every world; ``all`` runs them one after another."""


def run_seed(
    seed: int,
    profile: str,
    *,
    faults: Faults | None = None,
    validate: bool = True,
    features: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
) -> Result:
    """Run one seed of a profile to its end or to the first violation.

    Without ``validate`` the machines do not check themselves at each step; only the external checkers run.
    ``faults``, in place of those the seed draws, are for partitions only, ``features`` for ``whole-everything``;
    ``limits`` are single options in place of those drawn, of the worlds that have options.
    """
    if profile in (VOTERS, METADATA):
        return _run_quorum(seed, profile)
    if profile == OUTBOX:
        return run_outbox(seed)
    if profile in STORAGE_PROFILES:
        return run_storage(seed, profile)
    if profile in WHOLE_PROFILES:
        return run_whole(seed, profile, features=features, limits=limits)
    began = time.process_time()
    simulation: Simulation | GroupSimulation | ConsumerSimulation
    if profile in GROUP_PROFILES:
        simulation = GroupSimulation(seed, limited(GROUP_PROFILES[profile](seed), limits), validate=validate)
    elif profile == CONSUMER_GROUPS:
        simulation = ConsumerSimulation(seed, limited(consumer_faults.draw(seed), limits), validate=validate)
    elif profile == STORIES:
        script, options, _ = SCRIPTS[seed % len(SCRIPTS)]
        simulation = Simulation(1, options, validate=validate)
        script(simulation)
    else:
        options = faults or limited(draw_faults(profile, seed), limits)
        simulation = Simulation(seed, options, validate=validate)
    violation: Violation | None = None
    with _collector_at_rest():
        try:
            simulation.run()
        except Violation as found:
            violation = found
            simulation.world.log("VIOLATION {}", found)
    world = simulation.world
    return Result(
        seed=seed,
        profile=profile_of(profile, seed),
        violation=violation,
        story=world.story(),
        events=world.events,
        steps=simulation.machine_steps,
        elections=simulation.elections,
        acks=simulation.acks,
        committed=simulation.committed,
        lost=violation is None and simulation.known_as_lost,
        trace=world.trace,
        seconds=time.process_time() - began,
    )


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """The garbage collector would rescan the growing logs; a run makes few cycles, and is soon over."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _run_quorum(seed: int, profile: str) -> Result:
    """Run voters, or controllers on voters."""
    began = time.process_time()
    violation: Violation | None = None
    events = wins = decided = trace = 0
    try:
        with _collector_at_rest():
            world = play_metadata(seed) if profile == METADATA else play_quorum(seed)
        events, wins, decided = world.count, world.wins, world.decided
        trace = zlib.crc32(repr(world.committed).encode())
    except (Broken, InvariantBroken) as found:
        violation = Violation("metadata" if profile == METADATA else "I5 or I10", str(found))
    return Result(
        seed=seed,
        profile=profile,
        violation=violation,
        story=[] if violation is None else [f"VIOLATION {violation}"],
        events=events,
        steps=events,
        elections=wins,
        acks=decided,
        committed=decided,
        lost=False,
        trace=trace,
        seconds=time.process_time() - began,
    )
