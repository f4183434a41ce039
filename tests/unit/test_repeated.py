"""Which tests run a second time, and what a second run can change."""

import json
from pathlib import Path

import pytest

from tests import repeated


def test_files_of_failed_cluster_tests_run_again_once_each() -> None:
    failed = ["tests/cluster/b.py::test_two", "tests/cluster/a.py::test_one[x::y]", "tests/cluster/b.py::test_three"]
    assert repeated.files_to_repeat(failed) == ["tests/cluster/a.py", "tests/cluster/b.py"]


def test_a_failure_of_pure_code_is_final() -> None:
    assert repeated.files_to_repeat(["tests/cluster/a.py::t", "tests/unit/core/b.py::t"]) == []


def test_many_failed_files_are_no_lack_of_time() -> None:
    assert repeated.files_to_repeat([f"tests/cluster/{name}.py::t" for name in "abcd"]) == []


@pytest.mark.parametrize(
    ("codes", "result"),
    [([0], 0), ([1, 0], 0), ([1, 1], 1), ([2], 2), ([3], 3)],
    ids=["all pass", "passes alone", "fails twice", "interrupted", "pytest itself failed"],
)
def test_the_second_run_decides_where_there_is_one(
    codes: list[int], result: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    runs = []

    def run(arguments: list[str]) -> int:
        runs.append(arguments)
        failed = cache / "v/cache/lastfailed"
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.write_text(json.dumps({"tests/cluster/a.py::t": True} if codes[len(runs) - 1] else {}))
        return codes[len(runs) - 1]

    monkeypatch.setattr(repeated, "CACHE", cache)
    monkeypatch.setattr(repeated, "run", run)
    assert repeated.main(["-n", "2", "-m", "not long"]) == result
    assert len(runs) == len(codes)
    assert [run[run.index("-m") : run.index("-m") + 2] for run in runs] == [["-m", "not long"]] * len(codes)
