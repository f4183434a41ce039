"""How Spark calls a data source, as the source `raylog` relies on it and its models have it; one Spark for all.

The table of `tests/simulation/README.md` names what relies on each rule. A test that fails here with a new release of
Spark says which model is no longer true.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.style.sources import ROOT

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

Call = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases of `tests/spark/recorder.py`, each in a folder of its own."""
    made = tmp_path_factory.mktemp("recorded")
    command = [sys.executable, "-m", "tests.spark.recorder", str(made)]
    done = subprocess.run(command, cwd=ROOT, timeout=240, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    return made


def calls(folder: Path, case: str, what: str) -> list[Call]:
    found = [json.loads(line) for line in (folder / case / "calls").read_text().splitlines()]
    return [call for call in found if call["what"] == what]


def tasks(found: list[Call]) -> list[list[int]]:
    return sorted(call["task"] for call in found)


def test_a_task_whose_worker_is_lost_is_repeated_and_its_rows_count_once(folder: Path) -> None:
    [rows] = calls(folder, "read", "rows")
    assert rows["rows"] == sorted(
        f"{partition}-{number}" for partition in range(2) for number in range(3) for _ in "12"
    )
    assert tasks(calls(folder, "read", "read")) == [[0, 0], [0, 0], [1, 0], [1, 0], [1, 1]]


def test_a_read_is_planned_outside_of_the_program_and_once_for_its_frame(folder: Path) -> None:
    planned = calls(folder, "read", "partitions")
    readers = calls(folder, "read", "reader")
    [rows] = calls(folder, "read", "rows")
    assert len(readers) == len(planned) == 1
    assert rows["pid"] not in {call["pid"] for call in (*planned, *readers)}


def test_a_task_that_fails_is_repeated_with_all_of_its_rows(folder: Path) -> None:
    found = calls(folder, "repeated", "write")
    assert tasks(found) == [[0, 0], [1, 0], [1, 1]]
    assert [call["rows"] for call in found] == [3, 3, 3]
    [commit] = calls(folder, "repeated", "commit")
    assert commit["messages"] == [3, 3]
    assert not calls(folder, "repeated", "abort")


def test_a_commit_is_called_in_another_process_than_its_tasks(folder: Path) -> None:
    [commit] = calls(folder, "repeated", "commit")
    assert commit["pid"] not in {call["pid"] for call in calls(folder, "repeated", "write")}
    assert commit["pid"] not in {call["pid"] for call in calls(folder, "repeated", "writer")}


def test_an_abort_has_none_for_the_tasks_that_have_failed(folder: Path) -> None:
    assert tasks(calls(folder, "failed", "write")) == [[0, 0], [1, 0], [1, 1], [1, 2]]
    [abort] = calls(folder, "failed", "abort")
    assert abort["messages"] in ([3, None], [None, None]), "the other one may have been cancelled"
    assert not calls(folder, "failed", "commit")


def test_a_commit_that_fails_is_aborted_and_not_repeated(folder: Path) -> None:
    [commit], [abort] = calls(folder, "uncommitted", "commit"), calls(folder, "uncommitted", "abort")
    assert commit["messages"] == abort["messages"] == [3, 3]


def test_a_batch_of_a_stream_is_repeated_under_its_number_by_another_run(folder: Path) -> None:
    commits = calls(folder, "stream", "commit")
    assert [(call["batch"], call["messages"]) for call in commits] == [(0, commits[0]["messages"])] * 2
    assert [call["batch"] for call in calls(folder, "stream", "abort")] == [0]
    seen = {tuple(call["properties"]) for call in calls(folder, "stream", "write")}
    assert len({query for query, _, _ in seen}) == 1, "the query keeps its id"
    assert {batch for _, batch, _ in seen} == {"0"}
    assert len({run for _, _, run in seen}) == 2, "each start is another run"
