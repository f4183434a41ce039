"""A quick run over all profiles; the longer ones are ``make simulate SEEDS=n PROFILE=name``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.__main__ import main
from tests.simulation.profiles import DEFAULT, draw_faults, profile_of
from tests.simulation.runs import ALL_PROFILES, run_seed
from tests.simulation.whole.plan import EVERYTHING

pytestmark = [pytest.mark.sim, pytest.mark.timeout(300)]

SEEDS = 3
WHOLE = "whole"
SEEDS_IN_WHOLE = 1
"""A seed of the whole world takes seconds, and in EVERYTHING each one is another world; `make simulate` has more."""


@pytest.mark.parametrize("profile", ALL_PROFILES)
def test_a_profile_runs_without_a_violation(profile: str) -> None:
    committed = 0
    seeds = SEEDS_IN_WHOLE if profile.startswith(WHOLE) and profile != EVERYTHING else SEEDS
    for seed in range(1, seeds + 1):
        result = run_seed(seed, profile)
        assert result.violation is None, "\n".join([f"seed {seed} of {profile}", *result.story])
        committed += result.committed
    assert committed > 100, "a silent cluster must not pass"


KEPT_SEEDS = {
    ("swarm", 1460): "a log that restarts takes its new start for committed (was an error of a checker)",
    (
        "retention",
        1535,
    ): "a log that restarts forgets its producers, and may store their records twice (Kafka too)",
    ("swarm", 5144): "a late state showed the leader that a live follower is down, and it never joined again",
    (
        "disk",
        4,
    ): "a life that made a new folder died before its report, and the next one led without the old log",
    ("disk", 7): "the same, found in another way",
}


@pytest.mark.parametrize(("profile", "seed"), sorted(KEPT_SEEDS))
def test_a_seed_that_failed_once_passes_for_good(profile: str, seed: int) -> None:
    faults = draw_faults(profile, seed)
    if profile == "disk":
        faults = replace(faults, restore=0, delete_rate=0, refuse_rate=0, pause_rate=0)
    else:
        # The simulator did not have these faults when the oldest seeds failed.
        faults = replace(faults, wipe_rate=0, full_rate=0, controller_pause_rate=0, delete_rate=0)
    result = run_seed(seed, profile, faults=faults)
    assert result.violation is None, "\n".join([KEPT_SEEDS[profile, seed], *result.story])


def test_a_leader_emptied_by_a_deletion_continues_the_log_of_others() -> None:
    result = run_seed(11, "retention")
    assert result.violation is None, "\n".join(result.story)


@pytest.mark.parametrize("profile", ["swarm", "zombie", "stale", "reboot", "last-man", "controller"])
def test_a_profile_of_faults_brings_elections_about(profile: str) -> None:
    assert sum(run_seed(seed, profile).elections for seed in (1, 2, 3)) > 3


def test_half_of_the_default_seeds_are_swarm() -> None:
    profiles = [profile_of(DEFAULT, seed) for seed in range(198)]
    assert profiles.count("swarm") == 99
    assert {"zombie", "stale", "reboot", "last-man", "controller", "disk"} < set(profiles)


def test_a_seed_always_draws_the_same_faults() -> None:
    assert draw_faults("swarm", 7) == draw_faults("swarm", 7)
    assert draw_faults("swarm", 7) != draw_faults("swarm", 8)


def test_the_command_reports_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--profile", "quiet", "--story"]) == 0
    printed = capsys.readouterr().out
    assert "1 runs" in printed
    assert "events/s" in printed
    assert "trace " in printed
    assert "heal" in printed
