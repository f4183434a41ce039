"""Comparing two metadata logs by epochs and ends."""

from itertools import product

from raylog.core.quorum import LogHistory, Span


def log(*epochs: int) -> LogHistory:
    """One record per batch, written in these epochs."""
    history = LogHistory()
    history.append([Span(offset, offset + 1, epoch) for offset, epoch in enumerate(epochs)])
    return history


def rising() -> list[tuple[int, ...]]:
    """Every log of up to four records in epochs 1 to 3."""
    return [
        epochs for length in range(5) for epochs in product((1, 2, 3), repeat=length) if list(epochs) == sorted(epochs)
    ]


def test_the_epoch_before_an_offset_is_that_of_the_record_before_it() -> None:
    history = log(1, 1, 3)
    assert [history.epoch_before(offset) for offset in range(4)] == [0, 1, 1, 3]


def test_two_logs_are_equal_as_far_as_the_common_end_says_and_no_further() -> None:
    for mine, theirs in product(rising(), repeat=2):
        # Only pairs that can exist: an epoch has one writer, so it follows the same records in both.
        shared = set(mine) & set(theirs)
        if any(mine[: mine.index(epoch)] != theirs[: theirs.index(epoch)] for epoch in shared):
            continue
        common = log(*mine).common_end(log(*theirs))
        assert mine[:common] == theirs[:common]
        longest = next((n for n in range(min(len(mine), len(theirs)), 0, -1) if mine[n - 1] == theirs[n - 1]), 0)
        assert common == longest


def test_a_higher_epoch_ranks_above_a_longer_log() -> None:
    assert log(1, 2).rank > log(1, 1, 1, 1).rank
    assert log(1, 1).rank > log(1).rank > log().rank


def test_truncation_forgets_epochs_that_began_behind_the_cut() -> None:
    history = log(1, 1, 2, 3)
    history.truncate(2)
    assert (history.epochs, history.end) == ([(1, 0)], 2)
    assert history.matches(2, 1)
    assert not history.matches(2, 2)
    assert not history.matches(3, 1)


def test_a_log_behind_a_snapshot_compares_like_the_whole_one() -> None:
    for mine, theirs in product(rising(), repeat=2):
        shared = set(mine) & set(theirs)
        if any(mine[: mine.index(epoch)] != theirs[: theirs.index(epoch)] for epoch in shared):
            continue
        common = log(*mine).common_end(log(*theirs))
        # A snapshot holds only committed records, and every leader has them: it lies below the common end.
        for own, other in product(range(common + 1), repeat=2):
            short, known = log(*mine), log(*theirs)
            short.drop_before(own)
            known.drop_before(other)
            assert short.common_end(known) == common
            assert short.rank == log(*mine).rank
            assert known.matches(max(common, other), short.epoch_before(max(common, other)))


def test_behind_a_snapshot_the_epoch_of_its_last_record_is_known() -> None:
    history = log(1, 1, 3, 3)
    history.drop_before(3)
    assert (history.epochs, history.start, history.end) == ([(3, 2)], 3, 4)
    assert history.matches(3, 3)
    assert not history.matches(3, 1)
    assert not history.matches(2, 1)
    history.restart(9, 5)
    assert (history.rank, history.epoch_before(9)) == ((5, 9), 5)
    history.append([Span(9, 10, 6)])
    assert (history.epoch_before(9), history.epoch_before(10)) == (5, 6)
