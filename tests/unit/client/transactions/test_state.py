"""Which call is legal in which state of a transactional producer, and what the others say."""

from __future__ import annotations

import pytest

from raylog.base.errors import InvalidTxnState, ProducerFenced, RaylogError, RecordTooLarge, TransactionAbortable
from raylog.client.producer.transactions.state import LEGAL, Identity, Status, TransactionCall, TransactionState
from raylog.client.types import PreparedTxnState

FIRST, SECOND = Identity(7, 0), Identity(7, 1)


def state_in(status: Status) -> TransactionState:
    """A producer's state after the shortest way to it."""
    state = TransactionState("orders", two_phase_commit=True)
    if status is Status.UNINITIALIZED:
        return state
    state.initialized(FIRST, None)
    if status is Status.READY:
        return state
    state.begin()
    state.partitions["t", 0] = "id"
    if status is Status.PREPARED:
        state.prepare()
    elif status is Status.ABORTABLE_ERROR:
        state.failed(RecordTooLarge("The record is too large."))
    elif status is Status.FATAL_ERROR:
        state.failed_for_good(ProducerFenced("Another producer has the id."))
    elif status in (Status.COMMITTING, Status.ABORTING):
        state.ending(committed=status is Status.COMMITTING)
    assert state.status is status
    return state


def test_every_state_has_its_legal_calls() -> None:
    assert set(LEGAL) == set(Status)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("call", TransactionCall)
def test_a_call_is_legal_or_its_refusal_says_which_is(status: Status, call: TransactionCall) -> None:
    state = state_in(status)
    if call in LEGAL[status]:
        state.check(call)
        return
    expected: dict[Status, type[RaylogError]] = {
        Status.ABORTABLE_ERROR: TransactionAbortable,
        Status.FATAL_ERROR: ProducerFenced,
    }
    with pytest.raises(expected.get(status, InvalidTxnState)) as refused:
        state.check(call)
    for legal in LEGAL[status]:
        assert f"{legal.value}()" in refused.value.message


def test_a_refusal_is_a_sentence_for_the_user() -> None:
    with pytest.raises(InvalidTxnState) as refused:
        state_in(Status.READY).check(TransactionCall.SEND)
    assert refused.value.message == (
        "send() is not legal now: the producer 'orders' has no transaction open. Legal now: begin_transaction()."
    )


def test_the_end_of_a_transaction_gives_the_identity_of_the_next() -> None:
    state = state_in(Status.COMMITTING)
    state.ended(SECOND)
    assert (state.status, state.identity, state.is_begun) == (Status.READY, SECOND, False)


def test_a_failed_record_makes_a_transaction_abortable_and_names_it() -> None:
    state = state_in(Status.IN_TRANSACTION)
    assert state.failed(RecordTooLarge("The record is too large."))
    with pytest.raises(TransactionAbortable, match=r"The record is too large\. Call abort_transaction"):
        state.check(TransactionCall.COMMIT)
    state.ending(committed=False)
    assert not state.failed(RecordTooLarge("Another one.")), "it is being aborted in any case"
    state.ended(SECOND)
    assert state.cause is None


def test_nothing_fails_a_transaction_that_is_not_open() -> None:
    for status in set(Status) - {Status.IN_TRANSACTION, Status.COMMITTING}:
        state = state_in(status)
        assert not state.failed(RecordTooLarge("Too large."))
        assert state.status is status


def test_the_first_fatal_error_stays() -> None:
    state = state_in(Status.FATAL_ERROR)
    state.failed_for_good(RecordTooLarge("Later."))
    with pytest.raises(ProducerFenced, match="Another producer has the id"):
        state.check(TransactionCall.BEGIN)


def test_preparing_needs_transactions_that_do_not_time_out() -> None:
    state = TransactionState("orders")
    state.initialized(FIRST, None)
    state.begin()
    with pytest.raises(InvalidTxnState, match="transaction_two_phase_commit_enable=True"):
        state.check(TransactionCall.PREPARE)


def test_a_prepared_transaction_is_named_by_its_identity() -> None:
    state = state_in(Status.PREPARED)
    assert state.prepared == PreparedTxnState(7, 0)
    assert PreparedTxnState.parse(str(state.prepared)) == state.prepared
    empty = TransactionState("orders", two_phase_commit=True)
    empty.initialized(FIRST, None)
    empty.begin()
    assert empty.prepare() == PreparedTxnState() == PreparedTxnState.parse("")
    assert not empty.is_begun, "the coordinator knows nothing of it"
    with pytest.raises(ValueError, match="producer id:epoch"):
        PreparedTxnState.parse("seven")


def test_a_kept_transaction_waits_for_its_end_alone() -> None:
    state = TransactionState("orders", two_phase_commit=True)
    state.initialized(SECOND, PreparedTxnState(7, 0))
    assert state.is_begun
    with pytest.raises(InvalidTxnState, match=r"complete_transaction\(\)"):
        state.check(TransactionCall.BEGIN)
    state.check(TransactionCall.COMPLETE)
