"""`raylog logs`: the logs of Ray's workers by the names of their actors."""

import json
from pathlib import Path

import pytest

from raylog.actors.logs import NAMED
from tests.unit.cli.support import raylog, refusal

ACTORS = (
    *("controller", "broker-1", "broker-12"),
    *("replica:t-0:broker-1:ab", "replica:t-0:broker-12:ab", "replica:t-01:broker-2:ab"),
)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A folder of Ray, in which the workers have logged a hundred lines each."""
    names = tmp_path / "ray" / "session_latest" / "logs" / NAMED
    names.mkdir(parents=True)
    for process, actor in enumerate(ACTORS, start=7):
        log = names.parent / f"worker-ab-01000000-{process}.err"
        log.write_text(":job_id:01\n:actor_name:X\n" + "".join(f"{actor} line {n}\n" for n in range(100)))
        (names / f"{actor}.{process}").symlink_to(f"../{log.name}")
    (names / "broker-3.99").symlink_to("../removed.err")
    return tmp_path


def shown(session: Path, *words: str) -> str:
    outcome = raylog("logs", *words, RAY_TMPDIR=str(session))
    assert outcome.code == 0, outcome
    return outcome.out


def actors(session: Path, *words: str) -> list[str]:
    lines = shown(session, *words, "--json").splitlines()
    return list(dict.fromkeys(json.loads(line)["actor"] for line in lines))


def test_logs_are_listed_with_their_files(session: Path) -> None:
    rows = json.loads(shown(session, "--json"))
    assert [row["actor"] for row in rows] == sorted(ACTORS)
    assert rows[-1].keys() == {"actor", "process", "file", "bytes", "changed_ms"}
    assert Path(rows[0]["file"]).name == "worker-ab-01000000-8.err"
    assert "replica:t-0:broker-12:ab" in shown(session)


def test_the_last_lines_of_those_that_are_named(session: Path) -> None:
    text = shown(session, "controller", "--lines", "2")
    assert text.splitlines()[0].startswith("==> controller, process 7: ")
    assert text.splitlines()[1:] == ["controller line 98", "controller line 99"]
    whole = shown(session, "controller", "--lines", "500", "--json").splitlines()
    assert [json.loads(line)["line"] for line in whole] == [f"controller line {n}" for n in range(100)]


def test_a_broker_has_its_replicas_and_a_partition_its_own(session: Path) -> None:
    assert actors(session, "--broker", "1") == ["broker-1", "replica:t-0:broker-1:ab"]
    assert set(actors(session, "--partition", "t-0")) == {"replica:t-0:broker-1:ab", "replica:t-0:broker-12:ab"}
    assert actors(session, "--partition", "t-0", "--broker", "12") == ["replica:t-0:broker-12:ab"]


def test_where_there_is_none_the_folder_is_named(session: Path, tmp_path: Path) -> None:
    outcome = raylog("logs", "--broker", "9", RAY_TMPDIR=str(session))
    assert "`raylog logs` lists those that have" in refusal(outcome, 1)
    assert "--ray-dir names the folder of another session" in shown(session, "--ray-dir", str(tmp_path))
    assert json.loads(shown(session, "--ray-dir", str(tmp_path), "--json")) == []
