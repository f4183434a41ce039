"""The faults of a run with transactions, besides those of every run on one node."""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.chaos import sight
from tests.chaos.actors import RayActors
from tests.chaos.arena import Injected, NoTarget, Strike
from tests.chaos.copies.worker import RESULTS

WORKER_PREFIX: Final = "copier-"
COORDINATOR_PREFIX: Final = "transaction-coordinator-"
PAUSE_S: Final = (1.0, 8.0)


def _pick(arena: RayActors, rng: random.Random, prefix: str) -> tuple[str, int]:
    names = sight.actor_names(prefix)
    if not names:
        raise NoTarget(f"no {prefix}* runs")
    return arena.actor(rng.choice(names))


def kill_worker(arena: RayActors, rng: random.Random) -> Injected:
    """SIGKILL a worker's process, in the middle of whatever it does; Ray starts it again."""
    return arena.kill(_pick(arena, rng, WORKER_PREFIX))


def pause_worker(arena: RayActors, rng: random.Random) -> Injected:
    """SIGSTOP a worker for 1 to 8 s: its partitions, and its transaction, may be another's meanwhile."""
    return arena.pause(_pick(arena, rng, WORKER_PREFIX), rng.uniform(*PAUSE_S))


def kill_transaction_coordinator(arena: RayActors, rng: random.Random) -> Injected:
    """SIGKILL a transaction coordinator's process."""
    return arena.kill(_pick(arena, rng, COORDINATOR_PREFIX))


def pause_transaction_coordinator(arena: RayActors, rng: random.Random) -> Injected:
    """SIGSTOP a transaction coordinator for 1 to 8 s."""
    return arena.pause(_pick(arena, rng, COORDINATOR_PREFIX), rng.uniform(*PAUSE_S))


def kill_group_coordinator(arena: RayActors, rng: random.Random) -> Injected:
    """SIGKILL a group coordinator's process, often while a transaction has offsets there."""
    return arena.kill(_pick(arena, rng, "group-coordinator-"))


def kill_result_replica(arena: RayActors, rng: random.Random) -> Injected:
    """SIGKILL a replica of the results."""
    return arena.kill(_pick(arena, rng, f"replica:{RESULTS}-"))


def kill_state_replica(arena: RayActors, rng: random.Random) -> Injected:
    """SIGKILL a replica of the coordinators' log."""
    return arena.kill(_pick(arena, rng, "replica:__transaction_state-"))


def kill_both_ends(arena: RayActors, rng: random.Random) -> Injected:
    """SIGKILL a worker and a transaction coordinator at the same time."""
    return arena.kill(_pick(arena, rng, WORKER_PREFIX), _pick(arena, rng, COORDINATOR_PREFIX))


TRANSACTION_FAULTS: Final[dict[str, Callable[[RayActors, random.Random], Injected]]] = {
    "kill-worker": kill_worker,
    "pause-worker": pause_worker,
    "kill-transaction-coordinator": kill_transaction_coordinator,
    "pause-transaction-coordinator": pause_transaction_coordinator,
    "kill-group-coordinator": kill_group_coordinator,
    "kill-result-replica": kill_result_replica,
    "kill-state-replica": kill_state_replica,
    "kill-both-ends": kill_both_ends,
}
SHARED_FAULTS: Final = (
    "kill-leader",
    "kill-partition",
    "kill-controller",
    "kill-broker",
    "pause-leader",
    "hang-leader",
    "strand-leader",
)
"""Those of every run on one node that strike the source's topic."""
COPIES_FAULTS: Final = (*TRANSACTION_FAULTS, *SHARED_FAULTS)
"""All faults of this part."""


def faults_of(arena: RayActors) -> dict[str, Strike]:
    """Return the faults of a run with transactions, by name."""
    own: dict[str, Strike] = {kind: partial(strike, arena) for kind, strike in TRANSACTION_FAULTS.items()}
    return own | {kind: arena.faults[kind] for kind in SHARED_FAULTS}
