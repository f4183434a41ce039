"""A failing seed prints itself, its profile and its story, and ends the command with 1; equal seeds are equal runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tests.simulation.__main__ as command
from tests.simulation.__main__ import main
from tests.simulation.planted import noticed
from tests.simulation.planted.noticed import Note
from tests.simulation.planted.planted import PLANTED, catch
from tests.simulation.results import Result
from tests.simulation.runs import ALL_PROFILES, run_seed
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

ROOT = Path(__file__).resolve().parents[2]


def trace_under(hash_seed: str, profile: str, seed: int) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation", "--profile", profile, "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("trace "))


@pytest.mark.parametrize(
    ("profile", "seed"), [("swarm", 3), ("disk", 8), ("rebalance-storm", 5), ("voters", 4), ("metadata", 2)]
)
def test_the_trace_of_a_seed_does_not_depend_on_the_hash_seed(profile: str, seed: int) -> None:
    assert trace_under("1", profile, seed) == trace_under("2", profile, seed)


def test_the_same_seed_is_the_same_run_and_another_seed_is_not() -> None:
    one, again, other = run_seed(5, "stale"), run_seed(5, "stale"), run_seed(6, "stale")
    assert (one.trace, one.events, one.acks) == (again.trace, again.events, again.acks)
    assert one.trace != other.trace


def test_a_failing_seed_is_printed_with_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    planted = next(planted for planted in PLANTED if planted.name == "acks=all is answered on append")
    with planted.applied():
        assert main(["--seeds", str(planted.seeds), "--profile", planted.profile]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: seed" in printed
    assert f"profile {planted.profile}" in printed
    assert "VIOLATION I" in printed
    assert f"again: python -m tests.simulation --profile {planted.profile} --seed" in printed


def test_the_command_says_what_caught_each_planted_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "EVERY_BUG", PLANTED[:2])
    monkeypatch.setattr(command, "BUGS", {})
    assert main(["--planted"]) == 0
    printed = capsys.readouterr().out
    assert all(planted.name in printed for planted in PLANTED[:2])
    assert "2 of 2 planted bugs" in printed


def test_a_planted_bug_that_is_not_noticed_fails_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = getattr(PLANTED[0].target, PLANTED[0].attribute)
    harmless = replace(PLANTED[0], profile="quiet", seeds=1, substitute=as_it_is)
    monkeypatch.setattr(command, "EVERY_BUG", (harmless,))
    monkeypatch.setattr(command, "BUGS", {})
    assert main(["--planted"]) == 1
    assert "NOTHING" in capsys.readouterr().out


def test_an_unknown_profile_is_refused_with_the_names_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--profile", "swram"])
    printed = capsys.readouterr().err
    assert "'swarm'" in printed
    assert all(profile in printed for profile in ALL_PROFILES)


def test_all_profiles_are_run_with_a_line_of_totals_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("quiet", "rebalance-storm", "voters")
    monkeypatch.setattr(command, "ALL_PROFILES", few)
    assert main(["--profile", "all", "--seeds", "1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("total ")]
    totals = [json.loads(line.removeprefix("total ")) for line in lines]
    assert [each["profile"] for each in totals] == [*few, "all"]
    assert all(each["runs"] == 1 and each["events"] > 0 and each["violations"] == 0 for each in totals[:-1])
    assert totals[-1]["events"] == sum(each["events"] for each in totals[:-1])


def test_a_run_ends_when_it_has_enough_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "quiet", "--seeds", "50", "--events", "1"]) == 0
    assert '"runs": 1,' in capsys.readouterr().out


def test_the_seed_that_notices_a_bug_soonest_is_noted_and_goes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(noticed, "FILE", tmp_path / "noticed.json")
    noticed.write({"swarm: a bug of before": Note(3, "I1", 20)})
    bug = replace(PLANTED[0], seeds=20)
    monkeypatch.setattr(command, "EVERY_BUG", (bug,))
    monkeypatch.setattr(command, "BUGS", {})
    assert main(["--note"]) == 0
    seed, rule, _ = noticed.notes()[noticed.key(bug)]
    assert rule in bug.rules
    assert list(noticed.notes()) == [noticed.key(bug)], "bugs that are no more have no note"
    assert list(noticed.seeds_of(bug, noticed.notes())) == [seed, *(each for each in range(1, 21) if each != seed)]
    assert catch(bug)[0] == seed


def test_a_note_beyond_the_seeds_of_its_bug_is_of_no_use() -> None:
    bug = replace(PLANTED[0], seeds=3)
    assert list(noticed.seeds_of(bug, {noticed.key(bug): Note(4, "I1", 20)})) == [1, 2, 3]


def test_a_bug_that_no_seed_notices_gets_no_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(noticed, "FILE", tmp_path / "noticed.json")
    noticed.write({})
    as_it_is = getattr(PLANTED[0].target, PLANTED[0].attribute)
    monkeypatch.setattr(command, "EVERY_BUG", (replace(PLANTED[0], profile="quiet", seeds=1, substitute=as_it_is),))
    monkeypatch.setattr(command, "BUGS", {})
    assert main(["--note"]) == 1
    assert noticed.notes() == {}


def test_a_run_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noticed, "RUN_S", 1.0)

    def endless(seed: int) -> Result:
        while seed < 2:
            pass
        return replace(run_seed(1, "quiet"), violation=Violation(PLANTED[0].rules[0], "noticed"))

    note = noticed.soonest(replace(PLANTED[0], seeds=2), endless)
    assert note is not None
    assert note.seed == 2
