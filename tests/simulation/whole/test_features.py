"""What seeds of `whole-everything` draw, and how the features of one seed are narrowed by hand."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import main
from tests.simulation.runs import run_seed
from tests.simulation.whole.features import FEATURES, MOST, NEEDS, drawn, pairs, plan_of, with_needed
from tests.simulation.whole.plan import EVERYTHING, LOOSE, WHOLE

pytestmark = pytest.mark.sim

SEEDS = range(1, 801)


def test_a_seed_draws_a_handful_with_what_it_needs() -> None:
    for seed in SEEDS:
        names = drawn(seed)
        assert names == with_needed(names) == drawn(seed)
        assert 2 <= len(names) <= MOST + len(NEEDS)


def test_every_two_features_meet_within_some_hundred_seeds() -> None:
    met = pairs(SEEDS)
    assert len(met) == len(FEATURES) * (len(FEATURES) - 1) // 2
    assert min(met.values()) > 0, [pair for pair, times in met.items() if not times]


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_changes_the_plan_by_itself(name: str) -> None:
    without = plan_of(EVERYTHING, 5, ["few-replicas" if name != "few-replicas" else "delays"])
    assert plan_of(EVERYTHING, 5, [name]) != without


def test_a_feature_brings_the_same_with_others_and_without() -> None:
    alone, mixed = plan_of(EVERYTHING, 7, ["queues"]), plan_of(EVERYTHING, 7, ["delays", "queues", "disks"])
    assert (alone.workers, alone.queue_lock_ms) == (mixed.workers, mixed.queue_lock_ms)


@pytest.mark.parametrize("name", ["disks", "accounts", "tables"])
def test_no_topic_acknowledges_before_it_syncs_on_disks_that_lose_power(name: str) -> None:
    plans = [plan_of(EVERYTHING, seed, [name, "rolling-restarts"]) for seed in range(1, 21)]
    assert {LOOSE in plan.topics_besides for plan in plans if plan.disks} == {False}
    assert {LOOSE in plan.topics_besides for plan in plans if not plan.disks} <= {True}


def test_other_profiles_draw_what_they_have_always_drawn() -> None:
    assert plan_of(WHOLE, 3).features == ()


def test_an_unknown_feature_is_refused_with_the_names_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--profile", EVERYTHING, "--features", "ques"])
    printed = capsys.readouterr().err
    assert all(name in printed for name in FEATURES)


def test_features_are_refused_for_another_profile(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--profile", WHOLE, "--features", "queues"])
    assert EVERYTHING in capsys.readouterr().err


def test_a_run_says_what_it_has_mixed() -> None:
    result = run_seed(2, EVERYTHING, features=["halves"])
    assert result.violation is None, "\n".join(result.story)
    assert result.features == ("delays", "halves")


def test_the_pairs_that_seeds_mix_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pairs", "--seeds", "50"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(pairs([1]))
