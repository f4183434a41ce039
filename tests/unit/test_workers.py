"""Which tests the last worker takes, and which are left to the others."""

from pathlib import Path

import pytest

from tests import workers

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
