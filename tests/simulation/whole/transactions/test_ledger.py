"""One history for each claim about transactions: the ledger accepts what is right, and finds what is wrong."""

from __future__ import annotations

import pytest

from raylog.base.ids import TopicPartition
from tests.simulation.whole.transactions.ledger import OFFSETS, ONCE, VISIBLE, WHOLE, Ledger, Outcome, Txn
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

IN = TopicPartition("in", 0)
OTHER = TopicPartition("in", 1)
OUT = TopicPartition("out", 0)


def sent(ledger: Ledger, *values: bytes, at: TopicPartition = IN) -> Txn:
    txn = ledger.begin(f"transaction of {values!r}")
    for value in values:
        ledger.sends(txn, at, value)
    return txn


def done(ledger: Ledger, *values: bytes) -> Txn:
    txn = sent(ledger, *values)
    ledger.commits(txn)
    ledger.committed(txn)
    return txn


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_a_committed_transaction_that_is_read_whole_is_right(ledger: Ledger) -> None:
    txn = done(ledger, b"a", b"b")
    ledger.seen("reader", IN, 0, b"a")
    ledger.step("reader", IN, 0, 0)
    ledger.step("reader", IN, 1, 1)
    ledger.finish({IN: {0: b"a", 1: b"b"}})
    assert txn.seen_by == "reader"


def test_a_record_is_not_seen_before_its_commit_was_called_for(ledger: Ledger) -> None:
    sent(ledger, b"a")
    with pytest.raises(Violation, match=VISIBLE):
        ledger.seen("reader", IN, 0, b"a")


def test_a_record_of_an_aborted_transaction_is_never_seen(ledger: Ledger) -> None:
    txn = sent(ledger, b"a")
    ledger.commits(txn)
    ledger.aborted(txn)
    with pytest.raises(Violation, match=VISIBLE):
        ledger.finish({IN: {0: b"a"}})


def test_a_transaction_that_was_seen_is_not_aborted_any_more(ledger: Ledger) -> None:
    txn = sent(ledger, b"a")
    ledger.commits(txn)
    ledger.seen("reader", IN, 0, b"a")
    with pytest.raises(Violation, match=WHOLE):
        ledger.aborted(txn)


def test_a_committed_record_is_not_missing(ledger: Ledger) -> None:
    done(ledger, b"a", b"b")
    with pytest.raises(Violation, match=WHOLE):
        ledger.finish({IN: {0: b"a"}})


def test_a_committed_record_that_was_replaced_may_be_missing(ledger: Ledger) -> None:
    done(ledger, b"a", b"b")
    ledger.finish({IN: {1: b"b"}}, {b"a"})


def test_half_of_an_unknown_transaction_is_found_beside_a_replaced_record(ledger: Ledger) -> None:
    ledger.commits(sent(ledger, b"a", b"b", b"c"))
    ledger.finish({IN: {}}, {b"a"})
    with pytest.raises(Violation, match=WHOLE):
        ledger.finish({IN: {1: b"b"}}, {b"a"})


@pytest.mark.parametrize("found", [{}, {0: b"a", 1: b"b"}])
def test_of_an_unknown_transaction_all_or_nothing_exists(ledger: Ledger, found: dict[int, bytes]) -> None:
    ledger.commits(sent(ledger, b"a", b"b"))
    ledger.finish({IN: found})


def test_half_of_an_unknown_transaction_is_found(ledger: Ledger) -> None:
    ledger.commits(sent(ledger, b"a", b"b"))
    with pytest.raises(Violation, match=WHOLE):
        ledger.finish({IN: {1: b"b"}})


def test_an_unknown_transaction_that_was_seen_must_stay(ledger: Ledger) -> None:
    ledger.commits(sent(ledger, b"a"))
    ledger.seen("reader", IN, 0, b"a")
    with pytest.raises(Violation, match=WHOLE):
        ledger.finish({IN: {}})


def test_a_record_that_is_stored_twice_is_found(ledger: Ledger) -> None:
    done(ledger, b"a")
    with pytest.raises(Violation, match="stored twice"):
        ledger.finish({IN: {0: b"a"}, OTHER: {0: b"a"}})


def test_records_of_a_transaction_keep_their_order(ledger: Ledger) -> None:
    done(ledger, b"a", b"b")
    with pytest.raises(Violation, match=WHOLE):
        ledger.finish({IN: {0: b"b", 1: b"a"}})


def test_a_reader_may_jump_over_markers_and_aborted_records_only(ledger: Ledger) -> None:
    done(ledger, b"a", b"b")
    ledger.step("reader", IN, 2, 5)
    ledger.finish({IN: {0: b"a", 1: b"b"}})
    ledger.step("reader", IN, 1, 2)
    with pytest.raises(Violation, match="reader went from 1 to 2"):
        ledger.finish({IN: {0: b"a", 1: b"b"}})


def test_a_reader_does_not_go_back() -> None:
    with pytest.raises(Violation, match="W5"):
        Ledger().step("reader", IN, 3, 2)


def test_the_last_stable_offset_does_not_fall(ledger: Ledger) -> None:
    ledger.stable(IN, 4)
    ledger.stable(IN, 4)
    with pytest.raises(Violation, match=VISIBLE):
        ledger.stable(IN, 3)


def test_offsets_move_with_their_transaction_only(ledger: Ledger) -> None:
    txn = sent(ledger, b"a")
    ledger.moves(txn, {IN: 7})
    ledger.fetched(IN, ledger.known_offset(IN), None)
    with pytest.raises(Violation, match=OFFSETS):
        ledger.fetched(IN, 0, 7)
    ledger.commits(txn)
    ledger.fetched(IN, ledger.known_offset(IN), 7)
    ledger.fetched(IN, ledger.known_offset(IN), None)
    ledger.committed(txn)
    with pytest.raises(Violation, match=OFFSETS):
        ledger.fetched(IN, ledger.known_offset(IN), None)


def copied(ledger: Ledger, value: bytes, offset: int) -> None:
    txn = ledger.begin("copier")
    ledger.sends(txn, OUT, value, (IN, offset))
    ledger.commits(txn)


def test_each_input_has_one_copy(ledger: Ledger) -> None:
    copied(ledger, b"x", 0)
    copied(ledger, b"y", 4)
    assert ledger.uncopied({IN: [0, 4]}, {OUT: {0: b"x", 2: b"y"}}) == ""
    assert "1 records" in ledger.uncopied({IN: [0, 4]}, {OUT: {0: b"x"}})


@pytest.mark.parametrize(
    ("inputs", "offsets"),
    [([0], (0, 0)), ([0, 4], (4, 0)), ([0], (0, 4))],
    ids=["twice", "out of order", "of an aborted record"],
)
def test_a_wrong_copy_is_found(ledger: Ledger, inputs: list[int], offsets: tuple[int, int]) -> None:
    copied(ledger, b"x", offsets[0])
    copied(ledger, b"y", offsets[1])
    with pytest.raises(Violation, match=ONCE):
        ledger.uncopied({IN: inputs}, {OUT: {0: b"x", 2: b"y"}})


def test_an_outcome_is_open_until_the_client_calls() -> None:
    txn = Ledger().begin("t")
    assert (txn.outcome, txn.may_be_committed, txn.is_known_committed) == (Outcome.OPEN, False, False)
