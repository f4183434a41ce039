"""Which worker runs which file of tests, and when: of each kind the longest first, so that all workers end together.

How long a file takes is noted in `tests/durations.json` (`tests/durations.py`). A file that takes minutes and comes
last would leave the other workers idle meanwhile. Clusters come before Spark, whose Java stays in its worker, and both
before tests that only compute: these have no deadlines, need no idle processor, and the short ones fill the end.

A test of a cluster waits most of its time, for processes, sessions and elections. Two of them side by side leave almost
one of two cores idle, and more of them at once would miss their deadlines. Other tests only compute, and the story of
`ray up` has time. So the last of three or more workers has nothing but those, at a lower priority, and the others have
them when nothing else is left.

A plugin of the tests (`tests/conftest.py`), for `--dist loadfile`. May touch: the priority of the last worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from tests import durations

HOSTS = "tests/hosts/"
FOR_THE_LAST = (HOSTS, "tests/property/", "tests/simulation/", "tests/unit/")
"""Folders of tests that only compute, and the one of a story that waits for minutes, with which the last begins."""
WITH_SPARK = ("tests/spark/", "tests/pipelines/")
"""Folders that share a Spark in each worker, which takes memory from its first use to the end of the run."""
SPLIT = "tests/simulation/"
"""Folder with files that take minutes: with a last worker their tests are given out one by one, to fill its time."""
WORKERS_MIN = 3
"""With fewer workers all of them run everything, file by file."""
NICENESS = 10
"""A tenth of the weight of the others: what they leave idle is enough, and their deadlines are short."""


def is_last(worker: str, workers: int) -> bool:
    """Whether a worker, such as ``gw2``, is the last of so many: one that takes a crashed one's place is not."""
    return workers >= WORKERS_MIN and worker == f"gw{workers - 1}"


def kind_of(unit: str) -> int:
    """Return the turn of a unit's kind; the last worker lowers its priority behind the story of the hosts."""
    kinds = ((HOSTS,), (), WITH_SPARK, FOR_THE_LAST)  # (): all others
    return next((turn for turn, folders in enumerate(kinds) if unit.startswith(folders)), kinds.index(()))


def longest_first(units: Mapping[str, int], rows: Mapping[str, durations.Row]) -> list[str]:
    """Order units by kind and expected seconds; ``units`` has the number of tests in each, a unit is a file or a test.

    A unit without a row counts as middling, and equal ones keep their order.
    """
    middling_s = durations.middling_s(rows)

    def expected(unit: str) -> tuple[int, float]:
        row = rows.get(unit.partition("::")[0])
        seconds = middling_s if row is None else row.wall_s
        if "::" in unit and row is not None:
            seconds *= units[unit] / max(row.tests, 1)
        return kind_of(unit), -seconds

    return sorted(units, key=expected)


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
    """Return the scheduler of this module."""
    from xdist.scheduler.loadfile import LoadFileScheduling
    from xdist.workermanage import WorkerController

    rows = durations.read(durations.part_of(config))

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        """Files, the longest first, to the workers that may have them."""

        def _split_scope(self, nodeid: str) -> str:
            alone = self.numnodes >= WORKERS_MIN and nodeid.startswith(SPLIT)
            return nodeid if alone else super()._split_scope(nodeid)

        def _assign_work_unit(self, node: WorkerController) -> None:
            units = longest_first({unit: len(tests) for unit, tests in self.workqueue.items()}, rows)
            unit = next_unit(units, last=is_last(node.gateway.id, self.numnodes))
            if unit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(unit, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
