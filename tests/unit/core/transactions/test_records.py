"""The records of `__transaction_state` as they are stored: what one release has written, every later one reads."""

import pytest
from msgspec.msgpack import encode

from raylog.base.invariants import InvariantBroken
from raylog.core.transactions.records import NO_IDENTITY, ROWS, ProducerIdentity, TxnChanged, check_move, deleted
from raylog.core.transactions.states import LEGAL_PREDECESSORS, TxnState, is_legal_move
from raylog.protocol.transactions import TxnPartition
from tests.unit.core.transactions.context import ORDERS

DECIDED = TxnChanged(
    transactional_id="etl",
    producer_id=5,
    producer_epoch=8,
    last_id=5,
    last_epoch=7,
    state=TxnState.PREPARE_COMMIT,
    timeout_ms=60_000,
    writer_id=5,
    writer_epoch=7,
    marker_epoch=8,
    partitions=(ORDERS,),
    groups=("workers",),
    started_ms=100,
    changed_ms=200,
)
STORED = [1, 5, 8, 5, 7, "PrepareCommit", 60_000, 5, 7, 8, [["o" * 32, "orders", 0]], ["workers"], 100, 200]
"""Version, producer, replaced producer, state, timeout, writer, marker's epoch, partitions, groups, two times."""
EMPTY = TxnChanged(transactional_id="etl", producer_id=5, producer_epoch=0, state=TxnState.EMPTY, timeout_ms=60_000)


def test_a_record_is_stored_in_this_form() -> None:
    assert encode(DECIDED.to_wire()) == encode((["txn", "etl"], STORED))
    assert ROWS.read(["txn", "etl"], STORED) == DECIDED


def test_a_tombstone_forgets_an_id() -> None:
    assert deleted("etl").to_wire() == (["txn", "etl"], None)
    assert ROWS.read(["txn", "etl"], None) == deleted("etl")


def test_only_an_ongoing_transaction_is_decided() -> None:
    for outcome in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT):
        assert LEGAL_PREDECESSORS[outcome] == {TxnState.ONGOING}
    assert LEGAL_PREDECESSORS[TxnState.COMPLETE_COMMIT] == {TxnState.PREPARE_COMMIT}


def test_a_decided_transaction_comes_only_to_its_own_end() -> None:
    after = [state for state in TxnState if is_legal_move(TxnState.PREPARE_COMMIT, state)]
    assert after == [TxnState.COMPLETE_COMMIT]
    after = [state for state in TxnState if is_legal_move(TxnState.PREPARE_ABORT, state)]
    assert after == [TxnState.COMPLETE_ABORT]


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        ("an id has a producer", {"producer": NO_IDENTITY}),
        ("an id has a producer", {"producer": ProducerIdentity(5, 32_767)}),
        ("replaced by another", {"last": ProducerIdentity(5, 8)}),
        ("a writer while it is open", {"writer": NO_IDENTITY}),
        ("participants", {"partitions": (), "groups": ()}),
        ("once the outcome is decided", {"marker_epoch": -1}),
        ("newer than the records", {"marker_epoch": 7}),
        ("does not fence the next", {"marker_epoch": 9}),
        ("an epoch never falls", {"writer": ProducerIdentity(5, 9)}),
    ],
)
def test_a_record_that_contradicts_itself_is_a_defect(claim: str, changes: dict[str, object]) -> None:
    with pytest.raises(InvariantBroken, match=claim):
        DECIDED.changed(1, **changes).validate()  # type: ignore[arg-type]


def test_a_record_that_does_not_follow_the_last_one_is_a_defect() -> None:
    less = DECIDED.replaced(partitions=(TxnPartition("x" * 32, "x", 0),))
    ongoing = DECIDED.replaced(state=TxnState.ONGOING, marker_epoch=-1)
    with pytest.raises(InvariantBroken, match="stays in its transaction"):
        check_move(ongoing, less)
    with pytest.raises(InvariantBroken, match="begins without a transaction"):
        check_move(None, DECIDED)
    with pytest.raises(InvariantBroken, match="is not followed by"):
        check_move(DECIDED, EMPTY)
    check_move(ongoing, DECIDED)
    check_move(None, EMPTY)
