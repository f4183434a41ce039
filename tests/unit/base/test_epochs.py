"""Epoch history: the answers that decide where a follower truncates, and the epochs that truncation removes."""

import pytest

from raylog.base.epochs import EpochHistory
from raylog.base.ids import NO_EPOCH, LeaderEpoch, Offset
from raylog.base.invariants import InvariantBroken
from raylog.core.replication.log import LogSummary, ReplicaLog


def history() -> EpochHistory:
    return EpochHistory([(2, 10), (4, 15), (7, 25)])


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (1, (1, 10)),  # older than all known: its records are deleted, none lies beyond the first known epoch
        (2, (2, 15)),
        (3, (2, 15)),  # unknown: the largest below it
        (4, (4, 25)),
        (7, (7, 40)),  # the newest ends at the log end
        (9, (7, 40)),
    ],
)
def test_an_epoch_ends_where_the_largest_known_one_not_above_it_ends(epoch: int, answer: tuple[int, int]) -> None:
    assert history().end_for(LeaderEpoch(epoch), Offset(40)) == answer


def test_an_empty_history_ends_at_the_log_end() -> None:
    assert EpochHistory().end_for(LeaderEpoch(3), Offset(5)) == (3, 5)
    assert (EpochHistory().latest, EpochHistory().earliest) == (NO_EPOCH, NO_EPOCH)


def test_the_epoch_of_an_offset_is_the_one_that_wrote_it() -> None:
    assert [history().epoch_for(offset) for offset in (9, 10, 14, 15, 24, 25, 99)] == [None, 2, 2, 4, 4, 7, 7]


def test_assigning_the_newest_epoch_again_keeps_its_start() -> None:
    epochs = history()
    assert not epochs.assign(7, 30)
    assert epochs == history()


@pytest.mark.parametrize("epoch", [9, 5])
def test_an_epoch_that_wrote_nothing_gives_way_to_another_at_its_start(epoch: int) -> None:
    epochs = history()
    assert epochs.assign(epoch, 25)
    assert epochs.entries == [(2, 10), (4, 15), (epoch, 25)]


def test_cutting_the_end_forgets_epochs_that_begin_at_the_cut() -> None:
    epochs = history()
    assert epochs.truncate_end(15)
    assert epochs.entries == [(2, 10)]
    assert not epochs.truncate_end(15)


def test_cutting_the_start_keeps_the_epoch_of_the_first_record_left() -> None:
    epochs = history()
    assert epochs.truncate_start(17)
    assert epochs.entries == [(4, 17), (7, 25)]
    assert not epochs.truncate_start(17)


@pytest.mark.parametrize("entries", [[(2, 0), (1, 5)], [(2, 5), (3, 5)], [(-1, 0)], [(1, -1)]])
def test_entries_that_do_not_rise_are_refused(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        EpochHistory(entries)


def test_a_replica_takes_no_epoch_below_its_newest() -> None:
    nothing = Offset(0)
    log = ReplicaLog(
        LogSummary(
            log_start_offset=nothing,
            log_end_offset=Offset(9),
            durable_end_offset=Offset(9),
            epochs=((LeaderEpoch(5), nothing),),
        )
    )
    with pytest.raises(InvariantBroken, match="cannot follow"):
        log.begin_epoch(LeaderEpoch(4), Offset(9))
