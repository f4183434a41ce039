"""Leader epochs: the answers that decide how far a follower cuts."""

from __future__ import annotations

import pytest

from raylog.core.ids import NO_EPOCH, LeaderEpoch, Offset
from raylog.core.replication.epochs import EpochHistory


def history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (1, (1, 0)),  # older than all we know: its records are gone, nothing of it is beyond our first epoch
        (2, (2, 10)),
        (3, (2, 10)),  # unknown: the largest below it
        (4, (4, 25)),
        (7, (7, 40)),  # the newest ends at the log end
        (9, (7, 40)),
    ],
)
def test_the_end_of_an_epoch_is_that_of_the_largest_known_one_not_above_it(asked: int, answer: tuple[int, int]) -> None:
    known = history((2, 0), (4, 10), (7, 25))
    assert known.end_for(LeaderEpoch(asked), Offset(40)) == answer


def test_an_empty_history_ends_at_the_log_end() -> None:
    assert history().end_for(LeaderEpoch(3), Offset(5)) == (3, 5)
    assert history().latest == NO_EPOCH


def test_an_epoch_that_wrote_nothing_gives_way_to_the_next() -> None:
    known = history((1, 0), (2, 10))
    known.assign(LeaderEpoch(3), Offset(10))
    assert known.entries == ((1, 0), (3, 10))


def test_assigning_the_newest_epoch_again_keeps_its_start() -> None:
    known = history((1, 0), (2, 10))
    known.assign(LeaderEpoch(2), Offset(15))
    assert known.entries == ((1, 0), (2, 10))


def test_an_older_epoch_cannot_follow_a_newer_one() -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        history((5, 0)).assign(LeaderEpoch(4), Offset(9))


def test_cutting_the_end_forgets_epochs_that_begin_at_the_cut() -> None:
    known = history((1, 0), (2, 10), (3, 20))
    known.truncate_end(Offset(10))
    assert known.entries == ((1, 0),)


def test_cutting_the_start_keeps_the_epoch_of_the_first_record_left() -> None:
    known = history((1, 0), (2, 10), (3, 20))
    known.truncate_start(Offset(15))
    assert known.entries == ((2, 15), (3, 20))
    assert known.start_of(LeaderEpoch(2)) == 15
    assert known.start_of(LeaderEpoch(1)) is None
