"""Leader epoch history: Kafka's answers to OffsetsForLeaderEpoch, and what truncation forgets."""

import pytest

from raylog.storage.epochs import UNDEFINED, LeaderEpochHistory


def history() -> LeaderEpochHistory:
    return LeaderEpochHistory([(2, 0), (4, 10), (7, 25)])


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(7, (7, 40)), (6, (4, 25)), (5, (4, 25)), (4, (4, 25)), (3, (2, 10)), (2, (2, 10)), (1, (1, 0)), (8, UNDEFINED)],
)
def test_the_answer_is_the_largest_known_epoch_not_above_and_its_end(asked: int, answer: tuple[int, int]) -> None:
    assert history().end_offset_for(asked, 40) == answer


def test_an_empty_history_answers_undefined() -> None:
    assert LeaderEpochHistory().end_offset_for(3, 40) == UNDEFINED
    assert LeaderEpochHistory().latest is None


def test_assigning_the_same_epoch_again_changes_nothing() -> None:
    epochs = history()
    assert not epochs.assign(7, 30)
    assert epochs == history()


def test_an_epoch_that_wrote_nothing_is_replaced_by_the_next_at_the_same_offset() -> None:
    epochs = history()
    assert epochs.assign(9, 25)
    assert epochs.entries == [(2, 0), (4, 10), (9, 25)]


def test_an_older_epoch_replaces_newer_ones_that_did_not_survive() -> None:
    epochs = history()
    epochs.assign(5, 25)
    assert epochs.entries == [(2, 0), (4, 10), (5, 25)]


def test_truncation_from_the_end_forgets_epochs_that_start_there() -> None:
    epochs = history()
    assert epochs.truncate_from_end(10)
    assert epochs.entries == [(2, 0)]
    assert not epochs.truncate_from_end(10)


def test_truncation_from_the_start_moves_the_surviving_epoch() -> None:
    epochs = history()
    assert epochs.truncate_from_start(12)
    assert epochs.entries == [(4, 12), (7, 25)]
    assert not epochs.truncate_from_start(12)


def test_the_epoch_of_an_offset_is_the_one_that_wrote_it() -> None:
    assert [history().epoch_for(offset) for offset in (0, 9, 10, 24, 25, 99)] == [2, 2, 4, 4, 7, 7]
    assert LeaderEpochHistory([(1, 5)]).epoch_for(4) is None


def test_the_checkpoint_text_comes_back_and_a_cut_off_one_is_refused() -> None:
    assert LeaderEpochHistory.from_text(history().to_text()) == history()
    assert history().to_text() == "0\n3\n2 0\n4 10\n7 25\n"
    for text in ("", "0\n", "0\n3\n2 0\n", "1\n0\n", "0\n2\n2 0\n1 5\n"):
        with pytest.raises(ValueError):
            LeaderEpochHistory.from_text(text)
