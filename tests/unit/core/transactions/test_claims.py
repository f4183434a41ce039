"""What a coordinator answers a leader that is about to append the first batch of a transaction."""

import pytest

from raylog.base.errors import InvalidProducerEpoch, InvalidTxnState, RaylogError
from raylog.core.transactions.records import MARKER_EPOCH_MAX, ProducerIdentity
from raylog.protocol.transactions import TxnPartition, VerifyTransactionRequest
from tests.unit.core.transactions.context import BILLS, NAME, ORDERS, TIMEOUT_MS, Transactions


def queried(
    txns: Transactions, producer: ProducerIdentity, at: TxnPartition = ORDERS, *, name: str = NAME
) -> type[RaylogError] | None:
    """Return the kind of refusal; None = the leader may append."""
    request = txns.send(VerifyTransactionRequest(name, *producer, at.topic_id, at.partition))
    assert not txns.waits(request)
    return txns.error(request)


def test_a_partition_of_the_open_transaction_is_confirmed(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    assert queried(txns, producer) is None
    assert queried(txns, producer, BILLS) is InvalidTxnState
    txns.reply(txns.add(producer, BILLS))
    assert queried(txns, producer, BILLS) is None
    assert queried(txns.restarted(), producer, BILLS) is None, "the next coordinator knows it from the log"


def test_a_topic_created_again_is_another_one(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    assert queried(txns, producer, TxnPartition("n" * 32, ORDERS.topic, ORDERS.partition)) is InvalidTxnState


def test_an_id_or_a_producer_that_is_not_known_is_not_confirmed(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    assert queried(txns, producer, name="other") is InvalidTxnState
    assert queried(txns, ProducerIdentity(987_654, 0)) is InvalidTxnState
    assert queried(txns, ProducerIdentity(producer.producer_id, producer.epoch + 1)) is InvalidTxnState
    assert txns.machine.counters["claims_refused"] == 3


def test_nothing_is_confirmed_before_the_first_addition(txns: Transactions) -> None:
    assert queried(txns, txns.producer()) is InvalidTxnState


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_that_is_decided_takes_no_batch(txns: Transactions, committed: bool) -> None:
    """Its marker may be in the partition already; and the next transaction has not added it."""
    producer = txns.begun(ORDERS)
    following = txns.identity(txns.end(producer, committed=committed))
    for _ in range(2):
        assert queried(txns, producer) is InvalidProducerEpoch
        assert queried(txns, following) is InvalidTxnState
        txns.write_markers()
    txns.reply(txns.add(following, ORDERS))
    assert queried(txns, following) is None
    assert queried(txns, producer) is InvalidProducerEpoch


def test_a_transaction_past_its_timeout_takes_no_batch(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    txns.tick(TIMEOUT_MS)
    assert queried(txns, producer) is InvalidProducerEpoch


def test_a_transaction_kept_for_another_process_takes_no_batch(txns: Transactions) -> None:
    writer = txns.producer(two_phase=True)
    txns.reply(txns.add(writer, ORDERS))
    assert queried(txns, writer) is None
    keeper = txns.identity(txns.init(two_phase=True, keep=True))
    assert queried(txns, writer) is InvalidProducerEpoch
    assert queried(txns, keeper) is InvalidTxnState


def test_the_last_epoch_of_a_producer_id_is_no_exception(txns: Transactions) -> None:
    held = ProducerIdentity(txns.producer().producer_id, MARKER_EPOCH_MAX - 1)
    later = txns.edit(producer=held)
    later.reply(later.add(held, ORDERS))
    assert queried(later, held) is None
    later.identity(later.end(held))
    assert queried(later, held) is InvalidTxnState, "another producer id has followed"
