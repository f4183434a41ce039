"""Which worker runs which tests: what waits runs in all workers but the last, what computes in the last one meanwhile.

A test of a cluster waits most of its time, for processes, sessions and elections. Two of them side by side leave almost
one of two cores idle, and more of them at once would miss their deadlines. Other tests only compute. So the last of
three or more workers has nothing but those, at a lower priority, and the others have them when nothing else is left.

A plugin of the tests (`tests/conftest.py`), for `--dist loadfile`. May touch: the priority of the last worker.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

COMPUTING = ("tests/property/", "tests/simulation/", "tests/unit/")
"""Folders whose tests start no cluster."""
SPLIT = "tests/simulation/"
"""Folder with files that take minutes: their tests are given out one by one, so that all workers end together."""
WORKERS_MIN = 3
"""With fewer workers all of them run everything, file by file."""
NICENESS = 5
"""A third of the others' share: so that the last worker's tests end where the others keep all cores busy."""


def is_last(worker: str, workers: int) -> bool:
    """Whether a worker, such as ``gw2``, is the last of so many: one that takes a crashed one's place is not."""
    return workers >= WORKERS_MIN and worker == f"gw{workers - 1}"


def next_unit(units: list[str], *, last: bool) -> str | None:
    """Return which of the waiting units a worker takes, in their order; None = it has no more to do."""
    for unit in units:
        if unit.startswith(COMPUTING) == last:
            return unit
    return None if last or not units else units[0]


def pytest_configure(config: pytest.Config) -> None:
    """Lower the priority of the last worker."""
    worker = getattr(config, "workerinput", None)
    if worker is not None and is_last(worker["workerid"], worker["workercount"]):
        os.nice(NICENESS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of this module, if there are workers enough."""
    from xdist.scheduler.loadfile import LoadFileScheduling
    from xdist.workermanage import WorkerController

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        """Files in their order, to the workers that may have them."""

        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(SPLIT) else super()._split_scope(nodeid)

        def _assign_work_unit(self, node: WorkerController) -> None:
            unit = next_unit(list(self.workqueue), last=is_last(node.gateway.id, self.numnodes))
            if unit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)

    if config.getoption("dist") != "loadfile" or len(config.getoption("tx")) < WORKERS_MIN:
        return None
    return Scheduling(config, log)
