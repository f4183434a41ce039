"""Which worker runs which tests: what waits runs in all workers but the last, what has time in the last one meanwhile.

A test of a cluster waits most of its time, for processes, sessions and elections. Two of them side by side leave almost
one of two cores idle, and more of them at once would miss their deadlines. Other tests only compute, and the story of
`ray up` has time. So the last of three or more workers has nothing but those, at a lower priority, and the others have
them when nothing else is left.

A plugin of the tests (`tests/conftest.py`), for `--dist loadfile`. May touch: the priority of the last worker.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

HOSTS = "tests/hosts/"
FOR_THE_LAST = (HOSTS, "tests/property/", "tests/simulation/", "tests/unit/")
"""Folders of tests that only compute, and the one of a story that waits for minutes; in this order."""
SPLIT = "tests/simulation/"
"""Folder with files that take minutes: their tests are given out one by one, so that all workers end together."""
WORKERS_MIN = 3
"""With fewer workers all of them run everything, file by file."""
NICENESS = 10
"""A tenth of the weight of the others: what they leave idle is enough, and their deadlines are short."""


def is_last(worker: str, workers: int) -> bool:
    """Whether a worker, such as ``gw2``, is the last of so many: one that takes a crashed one's place is not."""
    return workers >= WORKERS_MIN and worker == f"gw{workers - 1}"


def next_unit(units: list[str], *, last: bool) -> str | None:
    """Return which of the waiting units a worker takes, in their order; None = it has no more to do."""
    for unit in units:
        if unit.startswith(FOR_THE_LAST) == last:
            return unit
    return None if last or not units else units[0]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lower the priority of the last worker for good, once it has tests that only compute: its hosts come before."""
    worker = getattr(item.config, "workerinput", None)
    if worker is None or not is_last(worker["workerid"], worker["workercount"]):
        return
    if not item.nodeid.startswith(HOSTS):
        os.nice(max(0, NICENESS - os.nice(0)))


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
