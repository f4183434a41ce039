"""One history for each claim about a compacted topic of transactions."""

from __future__ import annotations

import pytest

from raylog.base.ids import TopicPartition
from tests.simulation.whole.compaction.tables import LOST
from tests.simulation.whole.transactions.accounts import Accounts, TxnRow
from tests.simulation.whole.transactions.ledger import ONCE, Outcome, Txn
from tests.simulation.world import Violation

pytestmark = pytest.mark.sim

AT = TopicPartition("accounts", 0)


def put(books: Accounts, offset: int | None, outcome: Outcome, key: bytes = b"k", value: bytes | None = b"v") -> TxnRow:
    """A record of a transaction of its own; `offset` None: no client knows where it is stored."""
    name = b"record %d" % len(books.rows)
    row = books.enter(Txn(name.decode(), outcome), AT, key, value, name)
    if offset is not None:
        books.stored(row, offset)
    return row


def history(*outcomes: Outcome) -> tuple[Accounts, list[TxnRow]]:
    """Records of one key, one after the other."""
    books = Accounts()
    return books, [put(books, offset, outcome) for offset, outcome in enumerate(outcomes)]


def test_the_last_committed_record_of_a_key_is_enough() -> None:
    books, (first, last) = history(Outcome.COMMITTED, Outcome.COMMITTED)
    books.check_last({AT: {1: last.name}})
    assert books.replaced({AT: {1: last.name}}) == {first.name}
    assert books.replaced({AT: {0: first.name, 1: last.name}}) == {first.name}


def test_an_aborted_record_replaces_nothing() -> None:
    books, _ = history(Outcome.COMMITTED, Outcome.ABORTED)
    with pytest.raises(Violation, match=LOST):
        books.check_last({AT: {}})
    assert books.replaced({AT: {}}) == set()


@pytest.mark.parametrize("is_there", [True, False])
def test_an_unknown_record_may_have_replaced_another(is_there: bool) -> None:
    books, (first, last) = history(Outcome.COMMITTED, Outcome.CALLED)
    found = last if is_there else first
    last.txn.seen_by = "reader" if is_there else ""
    books.check_last({AT: {found.offset or 0: found.name}})


def test_a_reader_may_pass_a_record_that_was_replaced() -> None:
    books, (first, _) = history(Outcome.COMMITTED, Outcome.COMMITTED)
    books.went("reader", [first], {})
    books.check_passed()


@pytest.mark.parametrize("later", [None, Outcome.ABORTED, Outcome.OPEN])
def test_a_reader_may_not_pass_a_record_that_nothing_replaced(later: Outcome | None) -> None:
    books, (first,) = history(Outcome.COMMITTED)
    if later is not None:
        put(books, 1, later)
    books.went("reader", [first], {})
    with pytest.raises(Violation, match=LOST):
        books.check_passed()


def test_a_record_of_unknown_offset_may_have_replaced_one() -> None:
    books, (first,) = history(Outcome.COMMITTED)
    put(books, None, Outcome.CALLED)
    books.went("reader", [first], {})
    books.check_passed()


def test_only_committed_records_below_the_end_are_expected() -> None:
    books, (first, _, _, _) = history(Outcome.COMMITTED, Outcome.CALLED, Outcome.ABORTED, Outcome.COMMITTED)
    assert books.known(AT, 3) == [first]


def test_a_removal_may_be_missing_once_it_is_forgotten() -> None:
    books = Accounts()
    first, removal = put(books, 0, Outcome.COMMITTED), put(books, 1, Outcome.COMMITTED, value=None)
    with pytest.raises(Violation, match=LOST):
        books.check_last({AT: {}})
    books.forgets = True
    books.check_last({AT: {}})
    books.went("reader", [removal], {})
    assert not books.passed
    with pytest.raises(Violation, match=LOST):
        books.check_last({AT: {0: first.name}})


def test_a_sum_is_that_of_the_last_record() -> None:
    books = Accounts()
    row = put(books, 3, Outcome.COMMITTED, key=b"sum", value=b"7")
    books.check_sums({AT: {3: row.name}}, {(AT, b"sum"): b"7", (AT, b"nothing"): b"0"})
    with pytest.raises(Violation, match=ONCE):
        books.check_sums({AT: {3: row.name}}, {(AT, b"sum"): b"9"})


def test_a_record_is_read_as_it_was_sent_and_where_it_was_stored() -> None:
    books, (row,) = history(Outcome.COMMITTED)
    books.seen("reader", AT, 0, b"k", b"v", row.name)
    for offset, value, rule in ((0, b"other", "W3"), (1, b"v", "W14")):
        with pytest.raises(Violation, match=rule):
            books.seen("reader", AT, offset, b"k", value, row.name)
    other = put(books, None, Outcome.COMMITTED)
    with pytest.raises(Violation, match="W4"):
        books.seen("reader", AT, 0, b"k", b"v", other.name)
