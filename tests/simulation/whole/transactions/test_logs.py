"""One log for each claim about markers: what is right is accepted, what is wrong is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylog.base.ids import TopicPartition
from tests.simulation.whole.transactions.logs import Entry, check_cleaned, check_logs
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

A = TopicPartition("a", 0)
B = TopicPartition("b", 0)


def data(offset: int, epoch: int, *, transactional: bool = True) -> Entry:
    return Entry(offset, 7, epoch, transactional)


def marker(offset: int, epoch: int, *, committed: bool = True) -> Entry:
    return Entry(offset, 7, epoch, True, committed)


RIGHT = [data(0, 0), data(1, 0), marker(2, 1), data(3, 1), marker(4, 2, committed=False), marker(5, 3)]


def test_transactions_that_end_one_after_the_other_are_right() -> None:
    check_logs({A: RIGHT, B: [data(0, 1), marker(1, 2, committed=False)]})


def test_plain_batches_need_no_marker() -> None:
    check_logs({A: [data(0, 0, transactional=False), data(1, 0, transactional=False)]})


@pytest.mark.parametrize(
    ("entries", "claim"),
    [
        ([data(0, 0)], "hangs"),
        ([data(0, 0), marker(1, 1), data(2, 0)], "comes behind"),
        ([data(0, 0), marker(1, 1), marker(2, 1)], "second marker"),
        ([data(0, 0), data(1, 1)], "joins"),
        ([data(0, 0), data(1, 0, transactional=False)], "plain batch"),
    ],
    ids=["open", "late batch", "two markers", "two epochs", "plain"],
)
def test_a_wrong_log_is_found(entries: list[Entry], claim: str) -> None:
    with pytest.raises(Violation, match=claim):
        check_logs({A: entries})


def test_a_transaction_with_two_outcomes_is_found() -> None:
    logs = {A: [data(0, 0), marker(1, 1)], B: [data(0, 0), marker(1, 1, committed=False)]}
    with pytest.raises(Violation, match="epoch 0"):
        check_logs(logs)


def emptied(offset: int, epoch: int) -> Entry:
    return Entry(offset, 7, epoch, True, is_emptied=True)


def test_an_emptied_batch_begins_no_transaction() -> None:
    check_logs({A: [emptied(0, 0), data(1, 1), emptied(2, 1), marker(3, 2)]})


def test_a_marker_that_went_before_its_records_is_found() -> None:
    with pytest.raises(Violation, match="joins"):
        check_logs({A: [data(0, 0), data(2, 1), marker(3, 2)]})


def test_a_cleaned_log_has_no_aborted_record() -> None:
    log = [data(0, 0), marker(1, 1), data(2, 1), marker(3, 2, committed=False)]
    check_cleaned(A, log, 2)
    check_cleaned(A, [*log[:2], emptied(2, 1), log[3]], 4)
    with pytest.raises(Violation, match="aborted record at 2"):
        check_cleaned(A, log, 4)


def test_a_marker_is_written_again_once_its_producer_is_forgotten() -> None:
    first, again = marker(1, 1), replace(marker(2, 1), written_ms=15_000)
    check_logs({A: [data(0, 0), first, again]}, forgets_ms=15_000)
    with pytest.raises(Violation, match="a second marker of epoch 1, 15000 ms later"):
        check_logs({A: [data(0, 0), first, again]}, forgets_ms=15_001)
