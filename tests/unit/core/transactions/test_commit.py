"""A transaction from its first partition to its end: what is stored, answered and sent, and in which order."""

import pytest
from msgspec.structs import replace

from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)
from raylog.core.coordinators.events import AppendRecords
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.decision import Reply
from raylog.core.received import Received
from raylog.core.transactions import events as ev
from raylog.core.transactions.records import ProducerIdentity
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.states import TxnState
from raylog.protocol.transactions import EndTxnRequest
from tests.unit.core.transactions.context import BILLS, FIRST_ID, GROUP, NAME, ORDERS, Transactions


def test_a_new_id_gets_a_producer_id_in_epoch_0(txns: Transactions) -> None:
    assert txns.reply(txns.init()) == [FIRST_ID, 0, -1, -1]
    assert txns.state() is TxnState.EMPTY


def test_each_id_has_a_producer_id_of_its_own(txns: Transactions) -> None:
    assert txns.producer("a").producer_id != txns.producer("b").producer_id


def test_the_first_partition_begins_the_transaction(txns: Transactions) -> None:
    producer = txns.producer()
    txns.reply(txns.add(producer, ORDERS))
    row = txns.row()
    assert row.state is TxnState.ONGOING
    assert (row.writer, row.partitions, row.started_ms) == (producer, (ORDERS,), txns.wall_ms)


def test_more_partitions_and_groups_are_added_to_it(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    txns.tick(10)
    txns.reply(txns.add(producer, ORDERS, BILLS))
    txns.reply(txns.add_group(producer))
    row = txns.row()
    assert (row.partitions, row.groups) == ((ORDERS, BILLS), (GROUP,))
    assert row.started_ms == txns.wall_ms - 10


def test_a_partition_that_is_in_it_already_is_not_stored_again(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    rows = len(txns.log)
    txns.reply(txns.add(producer, ORDERS))
    assert len(txns.log) == rows


def test_a_group_alone_begins_a_transaction(txns: Transactions) -> None:
    producer = txns.producer()
    txns.reply(txns.add_group(producer))
    assert txns.state() is TxnState.ONGOING


def test_no_participant_at_all_is_refused(txns: Transactions) -> None:
    assert txns.error(txns.add(txns.producer())) is InvalidRequest


def test_the_outcome_is_answered_when_it_is_stored_and_before_the_markers(txns: Transactions) -> None:
    producer = txns.begun(ORDERS, BILLS)
    event = Received(message=EndTxnRequest(NAME, *producer, True), cause="end", now_ms=0, request=99)
    outbox = txns.machine.step(event)
    assert [type(effect) for effect in outbox.now] == [AppendRecords]
    assert {type(effect) for effect in outbox.after_sync} == {Reply, ev.EndTxn}


@pytest.mark.parametrize("committed", [True, False])
def test_the_markers_have_the_epoch_of_the_next_transaction(txns: Transactions, committed: bool) -> None:
    producer = txns.begun(ORDERS, BILLS)
    txns.reply(txns.add_group(producer))
    after = txns.identity(txns.end(producer, committed=committed))
    assert after == ProducerIdentity(producer.producer_id, producer.epoch + 1)
    (marker,) = txns.markers
    assert (marker.writer, marker.marker_epoch, marker.committed) == (producer, after.epoch, committed)
    assert (marker.partitions, marker.groups) == ((ORDERS, BILLS), (GROUP,))


@pytest.mark.parametrize(
    ("committed", "before", "after"),
    [
        (True, TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT),
        (False, TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT),
    ],
)
def test_it_is_complete_with_the_last_marker(
    txns: Transactions, committed: bool, before: TxnState, after: TxnState
) -> None:
    producer = txns.begun(ORDERS, BILLS)
    txns.end(producer, committed=committed)
    (marker,) = txns.markers
    txns.written(marker, ORDERS)
    txns.written(marker, ORDERS)
    assert txns.state() is before
    txns.written(marker, BILLS)
    assert txns.state() is after
    assert txns.row().partitions == ()


def test_a_marker_of_an_earlier_transaction_counts_for_none(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    second = txns.identity(txns.end(producer))
    (marker,) = txns.markers
    txns.write_markers()
    txns.reply(txns.add(second, ORDERS))
    txns.end(second)
    txns.written(marker, ORDERS)
    assert txns.state() is TxnState.PREPARE_COMMIT


def test_the_next_transaction_begins_when_the_one_before_is_complete(txns: Transactions) -> None:
    second = txns.identity(txns.end(txns.begun(ORDERS)))
    adding = txns.add(second, BILLS)
    group = txns.add_group(second)
    assert txns.waits(adding)
    assert txns.waits(group)
    txns.write_markers()
    assert txns.reply(adding) == txns.reply(group) == []
    assert (txns.row().writer, txns.row().partitions, txns.row().groups) == (second, (BILLS,), (GROUP,))


def test_a_request_that_waits_for_too_long_is_refused_and_may_be_repeated(txns: Transactions) -> None:
    second = txns.identity(txns.end(txns.begun(ORDERS)))
    adding = txns.add(second, BILLS)
    txns.tick(txns.settings.wait_ms - 1)
    assert txns.waits(adding)
    txns.tick(1)
    assert txns.error(adding) is ConcurrentTransactions
    txns.write_markers()
    assert txns.state() is TxnState.COMPLETE_COMMIT
    assert txns.reply(txns.add(second, BILLS)) == []


def test_a_request_whose_connection_closed_begins_no_transaction(txns: Transactions) -> None:
    second = txns.identity(txns.end(txns.begun(ORDERS)))
    txns.drop(txns.add(second, BILLS))
    txns.write_markers()
    assert txns.state() is TxnState.COMPLETE_COMMIT


# ---------------------------------------------------------------- repeated and wrong requests


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("is_complete", [True, False])
def test_the_same_end_again_gets_the_same_answer(txns: Transactions, committed: bool, is_complete: bool) -> None:
    producer = txns.begun(ORDERS)
    first = txns.reply(txns.end(producer, committed=committed))
    if is_complete:
        txns.write_markers()
    rows = len(txns.log)
    assert txns.reply(txns.end(producer, committed=committed)) == first
    assert len(txns.log) == rows


@pytest.mark.parametrize("committed", [True, False])
def test_another_outcome_is_refused(txns: Transactions, committed: bool) -> None:
    producer = txns.begun(ORDERS)
    txns.end(producer, committed=committed)
    assert txns.error(txns.end(producer, committed=not committed)) is InvalidTxnState
    txns.write_markers()
    assert txns.error(txns.end(producer, committed=not committed)) is InvalidTxnState
    assert txns.state().outcome is committed


def test_an_end_from_before_the_last_one_is_fenced(txns: Transactions) -> None:
    first = txns.begun(ORDERS)
    second = txns.identity(txns.end(first))
    txns.write_markers()
    txns.reply(txns.add(second, ORDERS))
    assert txns.error(txns.end(first)) is ProducerFenced
    txns.end(second)
    assert txns.error(txns.end(first)) is ProducerFenced


def test_a_commit_of_nothing_is_refused(txns: Transactions) -> None:
    producer = txns.producer()
    assert txns.error(txns.end(producer)) is InvalidTxnState
    txns.reply(txns.add(producer, ORDERS))
    second = txns.identity(txns.end(producer))
    txns.write_markers()
    assert txns.error(txns.end(second)) is InvalidTxnState


def test_an_abort_of_nothing_fences_what_may_still_be_on_its_way(txns: Transactions) -> None:
    producer = txns.producer()
    aborting = txns.end(producer, committed=False)
    after = txns.identity(aborting)
    assert after.epoch == producer.epoch + 1
    assert txns.state() is TxnState.COMPLETE_ABORT
    assert txns.markers == []
    assert txns.error(txns.add(producer, ORDERS)) is ProducerFenced
    assert txns.reply(txns.end(producer, committed=False)) == txns.reply(aborting)
    assert txns.reply(txns.add(after, ORDERS)) == []


def test_an_abort_of_nothing_while_the_one_before_ends_is_to_be_repeated(txns: Transactions) -> None:
    second = txns.identity(txns.end(txns.begun(ORDERS)))
    assert txns.error(txns.end(second, committed=False)) is ConcurrentTransactions
    txns.write_markers()
    assert txns.identity(txns.end(second, committed=False)).epoch == second.epoch + 1


def test_an_id_without_a_producer_and_a_strange_producer_are_refused(txns: Transactions) -> None:
    stranger = ProducerIdentity(5, 0)
    assert txns.error(txns.add(stranger, ORDERS)) is InvalidProducerIdMapping
    assert txns.error(txns.end(stranger)) is InvalidProducerIdMapping
    txns.producer()
    assert txns.error(txns.add_group(stranger)) is InvalidProducerIdMapping


def test_an_empty_id_is_refused(txns: Transactions) -> None:
    assert txns.error(txns.init(name="")) is InvalidRequest


def test_a_transaction_that_its_log_would_refuse_has_to_be_aborted() -> None:
    txns = Transactions(TxnSettings(record_bytes_max=500))
    producer = txns.begun(ORDERS)
    many = [replace(ORDERS, partition=number) for number in range(20)]
    assert txns.error(txns.add(producer, *many)) is TransactionAbortable
    assert txns.row().partitions == (ORDERS,)
    assert txns.identity(txns.end(producer, committed=False))


def test_an_id_that_its_log_would_refuse_is_refused() -> None:
    txns = Transactions(TxnSettings(record_bytes_max=500))
    assert txns.error(txns.init(name="n" * 500)) is InvalidRequest
    assert txns.log == []


def test_what_fits_while_it_is_open_fits_in_every_later_state() -> None:
    for limit in range(300, 420):
        txns = Transactions(TxnSettings(record_bytes_max=limit))
        producer = txns.producer()
        for number in range(20):
            request = txns.add(producer, replace(ORDERS, partition=number))
            if request in txns.refusals:
                break
        txns.end(producer)
        assert max(row_bytes(key, value) for key, value in txns.log) <= limit
