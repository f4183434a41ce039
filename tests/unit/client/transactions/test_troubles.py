"""Transactions through lost answers, moved coordinators, refusals and lost leaders."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.base.errors import (
    CommitFailed,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    DeliveryTimedOut,
    FencedMemberEpoch,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    NotCoordinator,
    OutOfOrderSequence,
    ProducerFenced,
    RaylogError,
    RecordTooLarge,
    RequestTimedOut,
    StaleMemberEpoch,
    TransactionAbortable,
    TransactionAborted,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.producer.producer import Producer
from raylog.client.types import ConsumerGroupMetadata
from tests.unit.client.toy_server import ToyCluster
from tests.unit.client.transactions.toy_transactions import Fault, ToyTransactions

WHERE = TopicPartition("t", 0)
METHODS = ("init_transactions", "add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit", "end_txn")
GROUP = ConsumerGroupMetadata("board", 3, "member")
PASSING: tuple[Fault, ...] = (
    ConcurrentTransactions(),
    CoordinatorLoadInProgress(),
    NotCoordinator(),
    "cut_after",
)


def run(producer: Producer, *values: bytes, topic: str = "t", offset_of: TopicPartition | None = None) -> None:
    """A transaction with these records, and an offset of the group."""
    with producer.transaction():
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number)
        if offset_of is not None:
            producer.flush()
            producer.send_offsets_to_transaction({offset_of: 1}, GROUP)


def transactional(cluster: ToyCluster, **options: Any) -> Producer:
    """A producer of the id "orders", ready for its first transaction."""
    producer = Producer(**cluster.options, transactional_id="orders", retry_backoff_ms=1, **options)
    producer.init_transactions()
    return producer


@pytest.mark.parametrize("fault", PASSING, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_passing_trouble_of_a_coordinator_is_not_seen(
    cluster: ToyCluster, coordinator: ToyTransactions, method: str, fault: Fault
) -> None:
    cluster.create_topic("t")
    coordinator.faults[method] += [fault, fault]
    with transactional(cluster) as producer:
        for number in range(2):
            with producer.transaction():
                producer.send("t", b"%d" % number)
                producer.send_offsets_to_transaction({WHERE: number}, ConsumerGroupMetadata("board"))
    assert coordinator.values("t", 0) == [b"0", b"1"]
    assert coordinator.offsets == {("board", "t", 0): 1}


@pytest.mark.parametrize("fault", ["cut_before", "cut_after", "cut_unreplicated", "duplicate_reply", 6, 19])
def test_a_passing_trouble_of_a_leader_is_not_seen(
    cluster: ToyCluster, coordinator: ToyTransactions, fault: str | int
) -> None:
    cluster.create_topic("t")
    with transactional(cluster) as producer:
        for number in range(3):
            cluster.set_faults("t", 0, ["store", fault])
            with producer.transaction():
                producer.send("t", b"first of %d" % number).result(10)
                for letter in (b"a", b"b", b"c"):
                    producer.send_batch("t", [letter])
    expected = [value for number in range(3) for value in (b"first of %d" % number, b"a", b"b", b"c")]
    assert coordinator.values("t", 0) == expected


def test_a_leader_that_moves_amid_a_transaction_is_followed(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster) as producer, producer.transaction():
        producer.send("t", b"a").result(10)
        cluster.move_leader("t", 0)
        producer.send("t", b"b").result(10)
    assert coordinator.values("t", 0) == [b"a", b"b"]


def test_a_failed_record_makes_the_transaction_abortable(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t", partitions=2)
    with transactional(cluster) as producer:
        producer.begin_transaction()
        producer.send("t", b"stored", partition=1).result(10)
        cluster.set_faults("t", 0, [RecordTooLarge.code])
        failed = producer.send("t", b"refused", partition=0)
        assert isinstance(failed.exception(10), RecordTooLarge)
        for call in (producer.commit_transaction, lambda: producer.send("t", b"more")):
            with pytest.raises(TransactionAbortable, match=r"set to refuse this\. Call abort_transaction\(\)"):
                call()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"again", partition=0)
    assert coordinator.values("t", 1, committed=False) == [b"stored"]
    assert coordinator.values("t", 0) == [b"again"]


def test_a_record_that_fails_during_the_commit_prevents_it(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t", partitions=2)
    with transactional(cluster, linger_ms=60_000) as producer:
        cluster.set_faults("t", 0, [RecordTooLarge.code])
        with pytest.raises(TransactionAbortable):
            run(producer, b"refused", b"stored")
        assert coordinator.outcomes in ({(1000, 0): False}, {}), "the block has aborted it"
        with producer.transaction():
            producer.send("t", b"kept", partition=0)
    assert coordinator.values("t", 0) == [b"kept"]


def test_records_behind_a_failed_one_are_not_sent(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold", RecordTooLarge.code])
    with transactional(cluster) as producer:
        producer.begin_transaction()
        batches = [producer.send_batch("t", [b"%d" % number]) for number in range(9)]
        cluster.release("t", 0)
        errors = [batch.exception(10) for batch in batches]
        assert errors[0] is None
        assert isinstance(errors[1], RecordTooLarge)
        assert isinstance(errors[-1], TransactionAborted)
        producer.abort_transaction()
    assert coordinator.values("t", 0) == []


def test_a_lost_record_of_the_transaction_makes_it_abortable(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster) as producer:
        producer.begin_transaction()
        for value in (b"a", b"b"):
            producer.send("t", value).result(10)
        cluster.do(lambda: cluster.partitions["t", 0].lose(1))
        cluster.move_leader("t", 0)
        assert isinstance(producer.send("t", b"c").exception(10), OutOfOrderSequence)
        with pytest.raises(TransactionAbortable, match="Records of this transaction for t-0 are lost"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"d")
    assert coordinator.values("t", 0) == [b"d"]


def test_a_record_that_is_late_makes_the_transaction_abortable(
    cluster: ToyCluster, coordinator: ToyTransactions
) -> None:
    cluster.create_topic("t")
    coordinator.faults["add_partitions_to_txn"].append("hold")
    with transactional(cluster, delivery_timeout_ms=100) as producer:
        producer.begin_transaction()
        assert isinstance(producer.send("t", b"late").exception(10), DeliveryTimedOut)
        with pytest.raises(TransactionAbortable, match="delivery_timeout_ms=100"):
            producer.commit_transaction()
        with pytest.raises(RequestTimedOut):
            producer.abort_transaction(timeout=0.1)
        coordinator.release()
        producer.abort_transaction()
    assert coordinator.outcomes == {(1000, 0): False}, "it had begun at the coordinator"


def test_an_old_epoch_at_a_leader_leaves_the_verdict_to_the_coordinator(
    cluster: ToyCluster, coordinator: ToyTransactions
) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [InvalidProducerEpoch.code])
    with transactional(cluster) as producer:
        producer.begin_transaction()
        assert isinstance(producer.send("t", b"a").exception(10), InvalidProducerEpoch)
        with pytest.raises(TransactionAbortable, match=r"if it raises ProducerFenced, close this producer; else begin"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"b")
    assert coordinator.values("t", 0) == [b"b"]


@pytest.mark.parametrize("method", ["add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit", "end_txn"])
@pytest.mark.parametrize("error", [ProducerFenced(), InvalidProducerEpoch()], ids=str)
def test_a_fenced_producer_is_at_its_end(
    cluster: ToyCluster, coordinator: ToyTransactions, method: str, error: RaylogError
) -> None:
    cluster.create_topic("t")
    coordinator.faults[method].append(error)
    with transactional(cluster) as producer:
        with pytest.raises(ProducerFenced):
            run(producer, b"a", offset_of=WHERE)
        with pytest.raises(ProducerFenced, match="make a new one"):
            producer.send("t", b"b")
        with pytest.raises(ProducerFenced):
            producer.begin_transaction()


def test_an_unknown_id_ends_the_producer(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    coordinator.faults["end_txn"].append(TransactionalIdNotFound("The id has expired."))
    with transactional(cluster) as producer:
        with pytest.raises(TransactionalIdNotFound):
            run(producer, b"a")
        with pytest.raises(TransactionalIdNotFound, match="has expired"):
            producer.begin_transaction()


def test_an_initialization_that_was_refused_may_be_repeated(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    coordinator.faults["init_transactions"].append(InvalidTransactionTimeout("transaction.max.timeout.ms is 1."))
    with Producer(**cluster.options, transactional_id="orders") as producer:
        with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
            producer.init_transactions()
        producer.init_transactions()


@pytest.mark.parametrize("refusal", [IllegalGeneration, StaleMemberEpoch, FencedMemberEpoch])
def test_offsets_of_an_evicted_member_are_not_committed(
    cluster: ToyCluster, coordinator: ToyTransactions, refusal: type[RaylogError]
) -> None:
    cluster.create_topic("t")
    coordinator.faults["txn_offset_commit"].append(refusal("The generation is 4."))
    with transactional(cluster) as producer:
        with pytest.raises(CommitFailed, match=r"lost its partitions \(The generation is 4\.\)"):
            run(producer, b"a", offset_of=WHERE)
        with producer.transaction():
            producer.send("t", b"b")
    assert coordinator.values("t", 0) == [b"b"]
    assert coordinator.values("t", 0, committed=False) == [b"a"]
    assert coordinator.offsets == {}


def test_a_commit_that_was_not_answered_in_time_is_repeated(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    coordinator.faults["end_txn"].append("hold")
    with transactional(cluster) as producer:
        producer.begin_transaction()
        producer.send("t", b"a")
        with pytest.raises(RequestTimedOut):
            producer.commit_transaction(timeout=0.3)
        coordinator.release()
        producer.commit_transaction()
        with producer.transaction():
            producer.send("t", b"b")
    assert coordinator.values("t", 0) == [b"a", b"b"]


def test_a_topic_that_was_deleted_makes_the_transaction_abortable(
    cluster: ToyCluster, coordinator: ToyTransactions
) -> None:
    cluster.create_topic("t")
    cluster.create_topic("other")
    with transactional(cluster) as producer:
        with pytest.raises(UnknownTopicOrPartition, match="missing"):
            run(producer, b"a", topic="other", offset_of=TopicPartition("missing", 0))
        with producer.transaction():
            producer.send("other", b"b")
    assert coordinator.values("other", 0) == [b"b"]
