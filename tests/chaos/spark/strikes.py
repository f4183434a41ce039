"""The faults of a run with a streaming query, besides those of transactions and of every run on one node."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import psutil

from tests.chaos.actors import RayActors
from tests.chaos.arena import Injected, NoTarget, Strike
from tests.chaos.copies.strikes import SHARED_FAULTS, TRANSACTION_FAULTS
from tests.chaos.sight import wait_until
from tests.chaos.spark.keeper import Keeper

BATCH_WITHIN_S: Final = 10.0
IN_BATCH_S: Final = (0.0, 0.6)


def kill_python_worker(keeper: Keeper, rng: random.Random) -> Injected:
    """SIGKILL a Python process that runs tasks; Spark repeats its task."""
    return _kill(keeper, rng, "python worker", keeper.python_workers)


def kill_executor(keeper: Keeper, rng: random.Random) -> Injected:
    """SIGKILL an executor's JVM; Spark starts another, and repeats its tasks there."""
    return _kill(keeper, rng, "executor", keeper.executors)


def kill_driver(keeper: Keeper, _: random.Random) -> Injected:
    """SIGKILL the driver; the next one goes on from the checkpoint, while old executors may still write."""
    life = keeper.kill_driver()
    return Injected(f"driver {life}", lambda: keeper.works_again(life))


def kill_driver_in_commit(keeper: Keeper, rng: random.Random) -> Injected:
    """SIGKILL the driver shortly after a micro-batch, at a random point of the next one: its commit among them."""
    batches = keeper.batches
    if not wait_until(lambda: keeper.batches > batches, BATCH_WITHIN_S):
        raise NoTarget("no micro-batch ends")
    time.sleep(rng.uniform(*IN_BATCH_S))
    return kill_driver(keeper, rng)


def _kill(keeper: Keeper, rng: random.Random, name: str, find: Callable[[], list[psutil.Process]]) -> Injected:
    found = find()
    if not found:
        raise NoTarget(f"no {name} runs")
    process = rng.choice(found)
    life, batches = keeper.life, keeper.batches
    keeper.kill(process)
    return Injected(f"{name} of driver {life}", lambda: keeper.works_since(life, batches))


QUERY_FAULTS: Final[dict[str, Callable[[Keeper, random.Random], Injected]]] = {
    "kill-python-worker": kill_python_worker,
    "kill-executor": kill_executor,
    "kill-driver": kill_driver,
    "kill-driver-in-commit": kill_driver_in_commit,
}
WITHOUT_WORKERS: Final = tuple(
    kind for kind in TRANSACTION_FAULTS if kind not in ("kill-worker", "pause-worker", "kill-both-ends")
)
"""The faults of transactions that do not need the workers of the part `copies`."""
SPARK_FAULTS: Final = (*QUERY_FAULTS, "kill-driver-and-coordinator", *WITHOUT_WORKERS, *SHARED_FAULTS)
"""All faults of this part."""


def faults_of(arena: RayActors, keeper: Keeper) -> dict[str, Strike]:
    """Return the faults of a run with a streaming query, by name."""
    own: dict[str, Strike] = {kind: partial(strike, keeper) for kind, strike in QUERY_FAULTS.items()}
    transactions: dict[str, Strike] = {kind: partial(TRANSACTION_FAULTS[kind], arena) for kind in WITHOUT_WORKERS}

    def kill_driver_and_coordinator(rng: random.Random) -> Injected:
        """SIGKILL a transaction coordinator and the driver at the same time."""
        coordinator = TRANSACTION_FAULTS["kill-transaction-coordinator"](arena, rng)
        driver = kill_driver(keeper, rng)
        return Injected(f"{coordinator.target} + {driver.target}", lambda: coordinator.back() and driver.back())

    shared = {kind: arena.faults[kind] for kind in SHARED_FAULTS}
    return own | {"kill-driver-and-coordinator": kill_driver_and_coordinator} | transactions | shared
