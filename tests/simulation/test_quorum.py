"""Metadata by majority under random faults: what is committed never changes, and the checks are worth something."""

import os

import pytest

from raylog.core.invariants import InvariantBroken
from raylog.core.quorum import events as ev
from tests.simulation.quorum import Broken
from tests.simulation.quorum_planted import Planted
from tests.simulation.quorum_play import play, play_figure_8, play_torn

SEEDS = int(os.environ.get("RAYLOG_QUORUM_SEEDS", "60"))


def test_what_is_committed_never_changes_and_an_epoch_has_one_controller() -> None:
    wins = losses = decided = snapshots = restarts = 0
    for seed in range(SEEDS):
        world = play(seed, hasty=seed % 3 == 0)
        snapshots, restarts = snapshots + world.snapshots, restarts + world.restarts
        wins, losses, decided = wins + world.wins, losses + world.losses, decided + world.decided
    assert wins > 3 * SEEDS, "the faults do not make controllers change often enough"
    assert losses > SEEDS / 4, "too few voters lose their directories"
    assert decided > 20 * SEEDS, "a silent quorum proves nothing"
    assert snapshots > 10 * SEEDS, "too few snapshots are taken"
    assert restarts > SEEDS, "too few voters lag behind a snapshot"


def test_the_same_seed_plays_the_same_story() -> None:
    assert play(3).committed == play(3).committed


def test_an_old_record_on_a_majority_is_not_taken_for_committed() -> None:
    play_figure_8()
    with pytest.raises((Broken, InvariantBroken)):
        play_figure_8(Planted(old_entries_by_count=True))


@pytest.mark.parametrize(
    ("torn_at", "bug"),
    [
        (ev.SaveSnapshot, Planted(open_without_epoch=True)),
        (ev.RestartLog, Planted(start_moved_first=True)),
    ],
)
def test_a_crash_while_a_snapshot_is_taken_leaves_no_other_log_behind_it(torn_at: type, bug: Planted) -> None:
    play_torn(torn_at)
    with pytest.raises((Broken, InvariantBroken)):
        play_torn(torn_at, bug)


@pytest.mark.parametrize(
    ("bug", "first"),
    [
        (Planted(promise_forgotten=True), 0),
        (Planted(longest_log=True), 0),
        (Planted(answer_before_sync=True), 0),
        (Planted(lost_voter_counts=True), 0),
        (Planted(snapshot_of_uncommitted=True), 0),
        (Planted(dropped_before_durable=True), 100),
        (Planted(any_tail_kept=True), 570),
    ],
)
def test_a_planted_bug_is_caught(bug: Planted, first: int) -> None:
    """The search begins shortly before a seed that is known to find it, and goes on far beyond."""
    for seed in range(first, first + 600):
        try:
            play(seed, planted=bug)
        except Broken:
            return
    pytest.fail(f"nobody noticed {bug}")
