"""Which tests the last worker takes, and which are left to the others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import durations, workers
from tests.durations import Row

UNITS = ["tests/cluster/test_a.py", "tests/property/test_b.py", "tests/spark/test_c.py"]

PASSING = "def test_passes():\n    pass\n"

pytest_plugins = ["pytester"]


def test_the_last_worker_takes_tests_that_compute() -> None:
    assert workers.next_unit(UNITS, last=True) == "tests/property/test_b.py"
    assert workers.next_unit([UNITS[0], UNITS[2]], last=True) is None


def test_the_others_take_them_when_nothing_else_is_left() -> None:
    assert workers.next_unit(UNITS, last=False) == "tests/cluster/test_a.py"
    assert workers.next_unit(UNITS[1:], last=False) == "tests/spark/test_c.py"
    assert workers.next_unit(UNITS[1:2], last=False) == "tests/property/test_b.py"
    assert workers.next_unit([], last=False) is None


def test_the_longest_comes_first_and_a_file_without_a_row_is_middling() -> None:
    rows = {name: Row(wall_s, 0.0, 1) for name, wall_s in (("long.py", 30.0), ("short.py", 1.0), ("other.py", 2.0))}
    units = dict.fromkeys(["short.py", "new.py", "other.py", "long.py"], 1)
    assert workers.longest_first(units, rows) == ["long.py", "new.py", "other.py", "short.py"]
    assert workers.longest_first(units, {}) == list(units), "without durations the order is that of the collection"


def test_a_test_given_out_alone_counts_as_its_part_of_the_file() -> None:
    rows = {"a.py": Row(40.0, 0.0, 4), "b.py": Row(15.0, 0.0, 1)}
    assert workers.longest_first({"a.py::one": 1, "b.py": 1}, rows) == ["b.py", "a.py::one"]


def test_hosts_clusters_spark_and_what_computes_follow_each_other() -> None:
    folders = ("hosts", "cluster", "spark", "unit")
    rows = {f"tests/{folder}/a.py": Row(10.0 * turn, 0.0, 1) for turn, folder in enumerate(folders)}
    assert workers.longest_first(dict.fromkeys(reversed(rows), 1), rows) == list(rows)


@pytest.mark.parametrize(("worker", "count", "last"), [("gw2", 3, True), ("gw1", 3, False), ("gw3", 3, False)])
def test_the_last_of_three_workers_is_one_that_began(worker: str, count: int, last: bool) -> None:
    assert workers.is_last(worker, count) is last


def test_of_two_workers_none_is_the_last() -> None:
    assert not workers.is_last("gw1", 2)


def test_each_test_runs_once_in_three_workers(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tests/cluster", "tests/simulation"):
        (pytester.path / folder).mkdir(parents=True)
    for number in range(8):
        (pytester.path / f"tests/cluster/test_waits_{number}.py").write_text(PASSING)
        (pytester.path / f"tests/simulation/test_computes_{number}.py").write_text(PASSING)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    ran = pytester.runpytest_subprocess("-p", "tests.workers", "-n", "3", "--dist", "loadfile", "-v")
    ran.assert_outcomes(passed=16)
    computed = {line.split()[0] for line in ran.outlines if "PASSED" in line and "computes" in line}
    waited = {line.split()[0] for line in ran.outlines if "PASSED" in line and "waits" in line}
    assert "[gw2]" in computed
    assert "[gw2]" not in waited


class Node:
    """A worker as the scheduler sees it, which notes the files that it is given."""

    def __init__(self, name: str, tests: list[str]) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[str] = []
        self._tests = tests

    def send_runtest_some(self, numbers: list[int]) -> None:
        """Take tests."""
        self.given += [self._tests[number] for number in numbers]

    def shutdown(self) -> None:
        """Take no more."""
        self.shutting_down = True


def handed_out(tests: list[str], count: int) -> list[Node]:
    """Have so many workers run the tests, each one test after the other, in turns; returns them."""
    options = {"dist": "loadfile", "tx": ["popen"] * count}
    config: Any = SimpleNamespace(
        getoption=options.get, getvalue=options.get, option=SimpleNamespace(loadscopereorder=False)
    )
    scheduling = workers.pytest_xdist_make_scheduler(config, None)
    nodes = [Node(f"gw{number}", tests) for number in range(count)]
    for node in nodes:
        scheduling.add_node(node)
        scheduling.add_node_collection(node, tests)
    scheduling.schedule()
    done = 0
    while any(done < len(node.given) for node in nodes):
        for node in nodes:
            if done < len(node.given):
                scheduling.mark_test_complete(node, tests.index(node.given[done]))
        done += 1
    return nodes


@pytest.mark.parametrize("count", [1, 2])
def test_workers_without_a_last_one_have_the_longest_files_first(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 6.0, "e": 3.0, "f": 5.0}
    rows = {f"tests/simulation/test_{name}.py": Row(wall_s, 0.0, 2) for name, wall_s in seconds.items()}
    monkeypatch.setattr(durations, "read", {"usual": rows}.get)
    nodes = handed_out([f"{file}::test_{number}" for file in rows for number in (1, 2)], count)
    order = [[name.partition(".py")[0][-1] for name in node.given] for node in nodes]
    assert order == ([list("ddffbbeeccaa")] if count == 1 else [list("ddbbcc"), list("ffeeaa")])
