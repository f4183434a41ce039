"""Producers that replace each other under one transactional id: what is aborted, kept, fenced, and answered again."""

import pytest

from raylog.base.errors import (
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
)
from raylog.core.transactions.records import MARKER_EPOCH_MAX, NEVER, PRODUCER_EPOCH_MAX, ProducerIdentity
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.states import TxnState
from tests.unit.core.transactions.context import BILLS, FIRST_ID, ORDERS, TIMEOUT_MS, Transactions

# ---------------------------------------------------------------- a new producer


def test_a_new_producer_fences_the_one_before(txns: Transactions) -> None:
    first = txns.producer()
    second = txns.producer()
    assert second == ProducerIdentity(first.producer_id, first.epoch + 1)
    assert txns.error(txns.add(first, ORDERS)) is ProducerFenced
    assert txns.error(txns.end(first, committed=False)) is ProducerFenced
    assert txns.error(txns.init(first)) is ProducerFenced
    assert txns.reply(txns.add(second, ORDERS)) == []


def test_a_new_producer_waits_for_the_abort_of_what_is_open(txns: Transactions) -> None:
    first = txns.begun(ORDERS)
    request = txns.init()
    assert txns.waits(request)
    assert txns.state() is TxnState.PREPARE_ABORT
    (marker,) = txns.markers
    assert (marker.writer, marker.committed) == (first, False)
    txns.write_markers()
    assert txns.identity(request).epoch > marker.marker_epoch
    assert txns.state() is TxnState.EMPTY


def test_the_fenced_producer_does_not_get_the_identity_of_the_new_one(txns: Transactions) -> None:
    first = txns.begun(ORDERS)
    txns.init()
    assert txns.error(txns.end(first, committed=False)) is ProducerFenced
    assert txns.error(txns.end(first, committed=True)) is ProducerFenced
    txns.write_markers()
    assert txns.error(txns.end(first, committed=False)) is ProducerFenced


def test_a_transaction_that_was_committed_stays_so_for_the_new_producer(txns: Transactions) -> None:
    first = txns.begun(ORDERS)
    second = txns.identity(txns.end(first))
    request = txns.init()
    assert txns.waits(request)
    txns.write_markers()
    assert txns.identity(request).epoch == second.epoch + 1
    assert [row[1][5] for row in txns.log if row[1]][-2:] == ["CompleteCommit", "Empty"]


def test_of_several_new_producers_the_last_one_is_the_producer(txns: Transactions) -> None:
    txns.begun(ORDERS)
    requests = [txns.init() for _ in range(3)]
    txns.write_markers()
    identities = [txns.identity(request) for request in requests]
    assert identities == sorted(set(identities))
    assert [txns.error(txns.add(each, ORDERS)) for each in identities] == [ProducerFenced, ProducerFenced, None]


def test_a_producer_that_begins_again_gets_the_same_answer_again(txns: Transactions) -> None:
    first = txns.producer()
    second = txns.identity(txns.init(first))
    assert second.epoch == first.epoch + 1
    assert txns.identity(txns.init(first)) == second
    assert txns.identity(txns.init(second)).epoch == second.epoch + 1


def test_a_producer_that_begins_again_aborts_its_own_transaction(txns: Transactions) -> None:
    first = txns.begun(ORDERS)
    requests = [txns.init(first), txns.init(first)]
    assert all(txns.waits(request) for request in requests)
    txns.write_markers()
    second, again = map(txns.identity, requests)
    assert second == again
    assert second.epoch > first.epoch
    assert txns.reply(txns.add(second, ORDERS)) == []
    assert txns.error(txns.init(first)) is ProducerFenced, "a late request does not abort the transaction after"


def test_a_stranger_does_not_become_the_producer(txns: Transactions) -> None:
    assert txns.error(txns.init(ProducerIdentity(77, 3))) is ProducerFenced
    producer = txns.producer()
    assert txns.error(txns.init(ProducerIdentity(producer.producer_id + 1, 0))) is ProducerFenced


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_beyond_the_limit_is_refused(txns: Transactions, timeout_ms: int) -> None:
    request = txns.init(timeout_ms=timeout_ms)
    assert txns.error(request) is InvalidTransactionTimeout
    assert "transaction.max.timeout.ms" in txns.refusals[request].message


# ---------------------------------------------------------------- the last epoch


def at_the_last_epoch() -> tuple[Transactions, ProducerIdentity]:
    txns = Transactions()
    producer = txns.producer()._replace(epoch=PRODUCER_EPOCH_MAX)
    return txns.edit(producer=producer), producer


def test_after_the_last_epoch_comes_another_producer_id() -> None:
    txns, last = at_the_last_epoch()
    txns.reply(txns.add(last, ORDERS))
    after = txns.identity(txns.end(last))
    assert after.producer_id != last.producer_id
    assert after.epoch == 0
    (marker,) = txns.markers
    assert (marker.writer, marker.marker_epoch) == (last, MARKER_EPOCH_MAX)
    assert txns.identity(txns.end(last)) == after
    txns.write_markers()
    assert txns.reply(txns.add(after, BILLS)) == []
    assert txns.error(txns.add(last, ORDERS)) is InvalidProducerIdMapping


def test_a_new_producer_gets_another_producer_id_then_too() -> None:
    txns, last = at_the_last_epoch()
    assert txns.identity(txns.init()).producer_id != last.producer_id
    assert txns.error(txns.end(last, committed=False)) is InvalidProducerIdMapping


def test_a_timeout_in_the_last_epoch_waits_for_a_producer_id() -> None:
    txns, last = at_the_last_epoch()
    txns.reply(txns.add(last, ORDERS))
    txns.grants_ids = False
    txns.tick(TIMEOUT_MS)
    assert txns.state() is TxnState.ONGOING
    txns.grants_ids = True
    txns.tick(txns.settings.producer_ids_retry_ms)
    txns.tick()
    assert txns.state() is TxnState.PREPARE_ABORT


# ---------------------------------------------------------------- producer ids


def test_a_controller_that_is_away_delays_only_new_ids(txns: Transactions) -> None:
    txns.producer("known")
    after = txns.restarted()
    after.grants_ids = False
    request = after.init(name="new")
    assert after.waits(request)
    assert after.reply(after.init(name="known"))
    after.grants_ids = True
    after.tick(after.settings.producer_ids_retry_ms)
    assert after.reply(request)


def test_a_controller_that_stays_away_refuses_new_ids_for_now(txns: Transactions) -> None:
    txns.grants_ids = False
    request = txns.init()
    txns.tick(txns.settings.wait_ms)
    assert txns.error(request) is CoordinatorNotAvailable


def test_ids_are_taken_in_blocks(txns: Transactions) -> None:
    for number in range(txns.settings.producer_ids):
        txns.producer(str(number))
    assert txns.next_id == FIRST_ID + txns.settings.producer_ids
    txns.producer("one more")
    assert txns.next_id == FIRST_ID + 2 * txns.settings.producer_ids


# ---------------------------------------------------------------- two-phase commit


def test_a_transaction_that_another_system_decides_on_never_times_out(txns: Transactions) -> None:
    producer = txns.identity(txns.init(two_phase=True))
    txns.reply(txns.add(producer, ORDERS))
    assert txns.row().timeout_ms == NEVER
    txns.tick(10**10)
    assert txns.state() is TxnState.ONGOING


def test_a_cluster_may_forbid_transactions_without_a_timeout() -> None:
    txns = Transactions(TxnSettings(two_phase_commit=False))
    assert txns.error(txns.init(two_phase=True)) is InvalidRequest


@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_is_completed_by_another_process(txns: Transactions, committed: bool) -> None:
    writer = txns.identity(txns.init(two_phase=True))
    txns.reply(txns.add(writer, ORDERS, BILLS))
    answer = txns.reply(txns.init(two_phase=True, keep=True))
    assert answer == [writer.producer_id, writer.epoch + 1, *writer]
    other = ProducerIdentity(writer.producer_id, writer.epoch + 1)
    assert txns.error(txns.end(writer, committed=committed)) is ProducerFenced
    after = txns.identity(txns.end(other, committed=committed))
    (marker,) = txns.markers
    assert (marker.writer, marker.marker_epoch, marker.committed) == (writer, after.epoch, committed)
    assert marker.partitions == (ORDERS, BILLS)
    txns.write_markers()
    assert txns.state().outcome is committed
    assert txns.reply(txns.add(after, ORDERS)) == []


def test_nothing_is_added_to_a_transaction_of_another_process(txns: Transactions) -> None:
    txns.begun(ORDERS)
    other = txns.identity(txns.init(keep=True))
    assert txns.error(txns.add(other, BILLS)) is InvalidTxnState


def test_a_kept_transaction_is_kept_for_each_process_that_comes(txns: Transactions) -> None:
    writer = txns.begun(ORDERS)
    first = txns.identity(txns.init(keep=True))
    assert txns.identity(txns.init(first, keep=True)).epoch == first.epoch + 1
    answer = txns.reply(txns.init(first, keep=True))
    assert answer == [writer.producer_id, first.epoch + 1, *writer]
    assert txns.state() is TxnState.ONGOING
    request = txns.init()
    txns.write_markers()
    assert txns.row().state is TxnState.EMPTY, "without the wish to keep it, it is aborted"
    assert txns.reply(request)


def test_nothing_is_kept_where_nothing_is_open(txns: Transactions) -> None:
    assert txns.reply(txns.init(keep=True)) == [FIRST_ID, 0, -1, -1]
    assert txns.reply(txns.init(keep=True)) == [FIRST_ID, 1, -1, -1]


def test_a_kept_transaction_outlives_the_last_epoch() -> None:
    txns, last = at_the_last_epoch()
    txns.reply(txns.add(last, ORDERS))
    other = txns.identity(txns.init(keep=True))
    assert other.producer_id != last.producer_id
    after = txns.identity(txns.end(other))
    assert after == ProducerIdentity(other.producer_id, 1)
    (marker,) = txns.markers
    assert (marker.writer, marker.marker_epoch) == (last, MARKER_EPOCH_MAX)


def test_a_kept_transaction_has_the_timeout_of_its_new_producer(txns: Transactions) -> None:
    txns.begun(ORDERS)
    txns.init(keep=True, two_phase=True)
    txns.tick(10 * TIMEOUT_MS)
    assert txns.state() is TxnState.ONGOING
    txns.init(keep=True)
    txns.tick(TIMEOUT_MS - 1)
    assert txns.state() is TxnState.ONGOING, "it counts from the takeover"
    txns.tick(1)
    assert txns.state() is TxnState.PREPARE_ABORT
