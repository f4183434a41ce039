"""A failing seed prints itself, its profile and its story, and ends the command with 1; equal seeds are equal runs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tests.simulation.__main__ as command
from tests.simulation.__main__ import main
from tests.simulation.planted import PLANTED
from tests.simulation.simulation import run_seed

pytestmark = pytest.mark.sim

ROOT = Path(__file__).resolve().parents[2]


def trace_under(hash_seed: str, seed: int) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation", "--profile", "swarm", "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("trace "))


@pytest.mark.parametrize("seed", [3, 8])
def test_the_trace_of_a_seed_does_not_depend_on_the_hash_seed(seed: int) -> None:
    assert trace_under("1", seed) == trace_under("2", seed)


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
    monkeypatch.setattr(command, "PLANTED", PLANTED[:2])
    monkeypatch.setattr(command, "TOO_DEEP", ())
    assert main(["--planted"]) == 0
    printed = capsys.readouterr().out
    assert all(planted.name in printed for planted in PLANTED[:2])
    assert "2 of 2 planted bugs" in printed


def test_a_planted_bug_that_nobody_notices_fails_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = getattr(PLANTED[0].target, PLANTED[0].attribute)
    harmless = replace(PLANTED[0], profile="quiet", seeds=1, substitute=as_it_is)
    monkeypatch.setattr(command, "PLANTED", (harmless,))
    monkeypatch.setattr(command, "TOO_DEEP", ())
    assert main(["--planted"]) == 1
    assert "NOTHING" in capsys.readouterr().out
