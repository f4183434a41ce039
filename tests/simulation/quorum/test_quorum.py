"""Metadata by majority under random faults: committed records never change, and the checks catch planted bugs."""

import os

import pytest

from raylog.core.invariants import InvariantBroken
from raylog.core.quorum import events as ev
from tests.simulation.quorum.disk import Broken
from tests.simulation.quorum.planted import Planted
from tests.simulation.quorum.play import play, play_figure_8, play_torn

SEEDS = int(os.environ.get("RAYLOG_QUORUM_SEEDS", "60"))


def test_what_is_committed_never_changes_and_an_epoch_has_one_controller() -> None:
    wins = losses = decided = snapshots = restarts = changes = excused = 0
    for seed in range(SEEDS):
        world = play(seed, hasty=seed % 3 == 0)
        snapshots, restarts = snapshots + world.snapshots, restarts + world.restarts
        wins, losses, decided = wins + world.wins, losses + world.losses, decided + world.decided
        changes, excused = changes + world.changes, excused + world.excused
    assert wins > 3 * SEEDS, "the faults do not make controllers change often enough"
    assert losses > SEEDS / 4, "too few voters lose their directories"
    assert decided > 20 * SEEDS, "a silent quorum proves nothing"
    assert snapshots > 10 * SEEDS, "too few snapshots are taken"
    assert restarts > SEEDS, "too few voters lag behind a snapshot"
    assert changes > 3 * SEEDS, "the set of voters changes too seldom"
    assert excused <= SEEDS / 20, "too many runs prove nothing"


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
        (Planted(dropped_before_durable=True), 0),
        (Planted(any_tail_kept=True), 0),
        (Planted(change_before_own_epoch=True), 0),
        (Planted(change_while_pending=True), 0),
        (Planted(two_changes_at_once=True), 0),
        (Planted(old_majority=True), 0),
        (Planted(learner_counts=True), 0),
        (Planted(removed_voter_counts=True), 0),
        (Planted(added_before_caught_up=True), 0),
        (Planted(snapshot_without_members=True), 0),
        (Planted(founders_alone_asked=True), 0),
        (Planted(any_identity_elects=True), 0),
        (Planted(removed_voter_unseats=True), 0),
        (Planted(founder_for_ever=True), 0),
        (Planted(own_end_confirmed=True), 0),
        (Planted(earlier_promises_count=True), 0),
        (Planted(append_promises_nothing=True), 0),
        (Planted(late_read_replaces=True), 0),
    ],
)
def test_a_planted_bug_is_caught(bug: Planted, first: int) -> None:
    """The search begins shortly before a seed that is known to find it, and continues far beyond."""
    of_snapshots = bug.dropped_before_durable or bug.any_tail_kept
    for seed in range(first, first + 600):
        try:
            play(seed, planted=bug, voters=3 if of_snapshots else None, snappy=of_snapshots)
        except Broken:
            return
    pytest.fail(f"nobody noticed {bug}")
