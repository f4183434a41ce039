"""Metadata by majority under random faults: committed records never change, and much happens to them."""

import os

from tests.simulation.quorum.play import play

SEEDS = int(os.environ.get("RAYLOG_QUORUM_SEEDS", "60"))


def test_what_is_committed_never_changes_and_an_epoch_has_one_controller() -> None:
    wins = losses = decided = snapshots = restarts = changes = excused = 0
    for seed in range(SEEDS):
        world = play(seed)
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
