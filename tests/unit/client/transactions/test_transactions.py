"""Transactions of a producer against a coordinator and leaders that do their part."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from raylog.base.errors import (
    ClientClosed,
    InvalidConfig,
    InvalidTxnState,
    ProducerFenced,
    RaylogError,
    TransactionAbortable,
    TransactionAborted,
)
from raylog.base.ids import TopicPartition
from raylog.client.producer.arrow_columns import ArrowColumns
from raylog.client.producer.producer import AsyncProducer, Producer
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTxnState
from tests.unit.client.toy_server import ToyCluster
from tests.unit.client.transactions.toy_transactions import ToyTransactions
from tests.waiting import wait_for

WHERE = TopicPartition("t", 0)


def fail_in_transaction(producer: Producer, work: Callable[[], object]) -> None:
    """Do something in a transaction whose block then raises; it has to come out, and nothing else."""

    def block() -> None:
        with producer.transaction():
            work()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def transactional(cluster: ToyCluster, **options: Any) -> Producer:
    """A producer of the id "orders", ready for its first transaction."""
    producer = Producer(**cluster.options, transactional_id="orders", **options)
    producer.init_transactions()
    return producer


def test_what_is_committed_is_stored_once_under_one_epoch(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t", partitions=2)
    with transactional(cluster) as producer:
        for number in range(3):
            with producer.transaction():
                producer.send("t", b"a%d" % number, partition=0)
                producer.send("t", b"b%d" % number, partition=1)
    assert coordinator.values("t", 0) == [b"a0", b"a1", b"a2"]
    assert coordinator.values("t", 1) == [b"b0", b"b1", b"b2"]
    headers = [header for header, _ in cluster.do(cluster.partitions["t", 0].columns)]
    assert [(header.producer_epoch, header.base_sequence) for header in headers] == [(0, 0), (1, 0), (2, 0)]


def test_the_time_of_the_calls_is_in_the_metrics(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    with transactional(cluster) as producer:
        with producer.transaction():
            pass
        found = producer.metrics()
        assert all(found[f"txn-{call}-time-ns-total"] > 0 for call in ("init", "begin", "commit"))
        assert found["txn-abort-time-ns-total"] == 0
    with Producer(**cluster.options) as other:
        assert not [name for name in other.metrics() if name.startswith("txn-")]


def test_a_commit_waits_for_everything_sent(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster, linger_ms=1_000) as producer:
        producer.begin_transaction()
        futures = [producer.send("t", b"%d" % number) for number in range(100)]
        producer.commit_transaction()
        assert all(future.done() and future.exception(0) is None for future in futures)
    assert len(coordinator.values("t", 0)) == 100


def test_partitions_of_one_moment_are_added_in_one_request(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t", partitions=8)
    with transactional(cluster, linger_ms=1_000) as producer:
        producer._route("t", None)
        with producer.transaction():
            are_queued = threading.Event()
            producer._runtime.call_soon(are_queued.wait, 10)  # the loop sees them all at once
            producer.send_batch("t", [b"v"] * 200, [b"k%d" % number for number in range(200)])
            are_queued.set()
    assert len(coordinator.named("add_partitions_to_txn")) == 1
    assert sum(len(coordinator.values("t", number)) for number in range(8)) == 200


def test_a_partition_is_added_once_in_a_transaction(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster) as producer:
        for _ in range(2):
            with producer.transaction():
                for _ in range(3):
                    producer.send("t", b"x").result(10)
    assert len(coordinator.named("add_partitions_to_txn")) == 2


def test_a_transaction_without_records_needs_no_request(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    with transactional(cluster) as producer:
        for _ in range(2):
            with producer.transaction():
                pass
        producer.begin_transaction()
        producer.abort_transaction()
    assert [name for name, _ in coordinator.requests] == ["init_transactions"]


def test_an_exception_in_the_block_aborts(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster) as producer:
        fail_in_transaction(producer, lambda: producer.send("t", b"lost").result(10))
        with producer.transaction():
            producer.send("t", b"kept")
    assert coordinator.values("t", 0) == [b"kept"]
    assert coordinator.values("t", 0, committed=False) == [b"lost"]


def test_an_abort_drops_what_is_not_sent(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t", partitions=2)
    with transactional(cluster, linger_ms=60_000) as producer:
        producer.begin_transaction()
        lost = producer.send("t", b"never sent", partition=0)
        producer.abort_transaction()
        assert isinstance(lost.exception(0), TransactionAborted)
        with producer.transaction():
            producer.send("t", b"kept", partition=0)
    assert coordinator.values("t", 0) == [b"kept"]
    assert coordinator.values("t", 0, committed=False) == []


def test_an_abort_waits_for_what_is_in_flight(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    with transactional(cluster) as producer:
        producer.begin_transaction()
        future = producer.send("t", b"under way")
        cluster.wait_held("t", 0)
        with pytest.raises(RaylogError, match=r"abort_transaction\(\).*call it again"):
            producer.abort_transaction(timeout=0.2)
        assert coordinator.named("end_txn") == []
        with pytest.raises(InvalidTxnState, match=r"Legal now: abort_transaction\(\)\."):
            producer.commit_transaction()
        cluster.release("t", 0)
        producer.abort_transaction()
        assert future.exception(10) is None, "it is stored, and not committed"
    assert coordinator.values("t", 0, committed=False) == [b"under way"]


@pytest.mark.parametrize("initialized", [False, True])
def test_a_record_outside_a_transaction_is_refused(
    cluster: ToyCluster, coordinator: ToyTransactions, initialized: bool
) -> None:
    cluster.create_topic("t")
    legal = "begin_transaction" if initialized else "init_transactions"
    with Producer(**cluster.options, transactional_id="orders") as producer:
        if initialized:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"inside").result(10)
        for _ in range(2):
            with pytest.raises(InvalidTxnState, match=rf"^send\(\) is not legal now: .*Legal now: {legal}\(\)\.$"):
                producer.send("t", b"outside")
        with pytest.raises(InvalidTxnState, match=r"^send\(\) is not legal"):
            producer.send_batch("t", [b"outside"])
        with pytest.raises(InvalidTxnState, match=r"^send\(\) is not legal"):
            producer.send_arrow("t", ArrowColumns(pa.array([b"outside"])))
    assert [value for _, _, value in cluster.records("t", 0)] == [b"inside"] * initialized


def test_calls_in_the_wrong_order_name_the_legal_one(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    with Producer(**cluster.options, transactional_id="orders") as producer:
        with pytest.raises(InvalidTxnState, match=r"Legal now: init_transactions\(\)"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(InvalidTxnState, match=r"Legal now: begin_transaction\(\)"):
            producer.init_transactions()
        with pytest.raises(InvalidTxnState, match=r"Legal now: begin_transaction\(\)"):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(InvalidTxnState, match=r"commit_transaction\(\)"):
            producer.begin_transaction()


def test_a_producer_without_an_id_has_no_transactions(cluster: ToyCluster) -> None:
    with Producer(**cluster.options) as producer, pytest.raises(InvalidTxnState, match="give it one"):
        producer.begin_transaction()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"enable_idempotence": False}, "needs enable_idempotence=True"),
        ({"acks": 1}, "needs acks='all'"),
        ({"transactional_id": ""}, "may not be empty"),
        ({"transactional_id": None, "transaction_two_phase_commit_enable": True}, "needs a transactional_id"),
        ({"transaction_two_phase_commit_enable": True, "transaction_timeout_ms": 5}, "never time out"),
    ],
)
def test_a_configuration_that_cannot_have_transactions_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        Producer({"transactional.id": "orders"} | {name.replace("_", "."): value for name, value in options.items()})


def test_the_coordinator_gets_the_timeout(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    with transactional(cluster, transaction_timeout_ms=1234):
        assert coordinator.inits[0].transaction_timeout_ms == 1234
        assert not coordinator.inits[0].two_phase_commit


def test_offsets_are_committed_with_the_transaction(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    group = ConsumerGroupMetadata("board", 3, "member-1", None)
    with transactional(cluster) as producer:
        fail_in_transaction(producer, lambda: producer.send_offsets_to_transaction({WHERE: 5}, group))
        assert coordinator.offsets == {}
        with producer.transaction():
            producer.send_offsets_to_transaction({WHERE: 6}, group)
            producer.send_offsets_to_transaction({WHERE: OffsetAndMetadata(7, "note", 2)}, group)
            assert coordinator.offsets == {}
            last = coordinator.pending[-1]
        assert coordinator.offsets == {("board", "t", 0): 7}
        assert (last.group_id, last.generation_id, last.member_id) == ("board", 3, "member-1")
        assert len(coordinator.named("add_offsets_to_txn")) == 2, "once in each transaction"
        with producer.transaction():
            producer.send_offsets_to_transaction({}, group)
            with pytest.raises(TypeError, match="group_metadata"):
                producer.send_offsets_to_transaction({WHERE: 1}, "board")  # type: ignore[arg-type]


def test_a_second_producer_of_the_id_fences_the_first(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster) as first:
        first.begin_transaction()
        first.send("t", b"of the first").result(10)
        with transactional(cluster) as second:
            with pytest.raises(ProducerFenced, match="another one has this transactional_id now"):
                first.commit_transaction()
            for call in (first.abort_transaction, first.begin_transaction):
                with pytest.raises(ProducerFenced):
                    call()
            with pytest.raises(ProducerFenced):
                first.send("t", b"late")
            with second.transaction():
                second.send("t", b"of the second")
    assert coordinator.values("t", 0) == [b"of the second"]
    assert coordinator.values("t", 0, committed=False) == [b"of the first"]


def test_closing_aborts_what_is_open(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster, linger_ms=60_000) as producer:
        producer.begin_transaction()
        lost = producer.send("t", b"open")
        wait_for(lambda: bool(coordinator.named("add_partitions_to_txn")), "the partition is added")
    assert lost.exception(0) is not None
    assert coordinator.outcomes == {(1000, 0): False}
    with pytest.raises(ClientClosed):
        producer.begin_transaction()


def test_a_prepared_transaction_is_committed_by_another_producer(
    cluster: ToyCluster, coordinator: ToyTransactions
) -> None:
    cluster.create_topic("t")
    two_phase: dict[str, Any] = {"transaction_two_phase_commit_enable": True}
    with transactional(cluster, **two_phase) as first:
        first.begin_transaction()
        first.send("t", b"prepared")
        prepared = first.prepare_transaction()
        assert prepared == PreparedTxnState(1000, 0)
        with pytest.raises(InvalidTxnState, match=r"complete_transaction\(\)"):
            first.send("t", b"too late")
    assert coordinator.outcomes == {}, "closing leaves it prepared"
    with Producer(**cluster.options, transactional_id="orders", **two_phase) as second:
        assert second.init_transactions(keep_prepared_txn=True) == prepared
        assert second.complete_transaction(PreparedTxnState.parse(str(prepared)))
        with second.transaction():
            second.send("t", b"next")
    assert [each.keep_prepared for each in coordinator.inits] == [False, True]
    assert all(each.two_phase_commit for each in coordinator.inits)
    assert coordinator.outcomes == {(1000, 1): True, (1000, 2): True}


def test_another_name_than_the_prepared_ones_aborts(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster, transaction_two_phase_commit_enable=True) as producer:
        producer.begin_transaction()
        producer.send("t", b"prepared")
        producer.prepare_transaction()
        assert not producer.complete_transaction(PreparedTxnState(1000, 99))
    assert coordinator.values("t", 0, committed=False) == [b"prepared"]


async def _failing(producer: AsyncProducer) -> None:
    async with producer.transaction():
        await producer.send_and_wait("t", b"lost")
        raise ZeroDivisionError


async def _hanging(producer: AsyncProducer) -> None:
    async with producer.transaction():
        await producer.send_and_wait("t", b"cancelled")
        await asyncio.Event().wait()


async def _asynchronous(cluster: ToyCluster) -> None:
    async with AsyncProducer(**cluster.options, transactional_id="orders") as producer:
        await producer.init_transactions()
        async with producer.transaction():
            kept = await producer.send("t", b"kept")
        assert kept.done()
        with pytest.raises(ZeroDivisionError):
            await _failing(producer)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_hanging(producer), 0.5)
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({WHERE: 9}, ConsumerGroupMetadata("board"))
        await producer.commit_transaction()
        for outside in (producer.send_and_wait, producer.send):
            with pytest.raises(InvalidTxnState, match=r"^send\(\) is not legal now: .* begin_transaction\(\)\.$"):
                await outside("t", b"outside")
        with pytest.raises(InvalidTxnState, match=r"^send\(\) is not legal"):
            await (await producer.send_batch("t", [b"outside"]))


def test_the_asynchronous_producer_does_the_same(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    asyncio.run(_asynchronous(cluster))
    assert coordinator.values("t", 0) == [b"kept"]
    assert coordinator.values("t", 0, committed=False) == [b"lost", b"cancelled"]
    assert coordinator.offsets == {("board", "t", 0): 9}


def test_a_topic_that_is_created_again_ends_the_transaction(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    """The new topic is no participant: its records would never be committed."""
    cluster.create_topic("t")
    with transactional(cluster) as producer:
        producer.begin_transaction()
        producer.send("t", b"before").result(10)
        cluster.delete_topic("t")
        cluster.create_topic("t")
        with pytest.raises(TransactionAbortable):
            producer.send("t", b"after").result(10)
        with pytest.raises(TransactionAbortable):
            producer.commit_transaction()
        producer.abort_transaction()
        assert cluster.records("t", 0) == []
        with producer.transaction():
            producer.send("t", b"next").result(10)
    assert coordinator.values("t", 0) == [b"next"]


def test_a_topic_that_is_created_again_between_transactions(cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    cluster.create_topic("t")
    with transactional(cluster) as producer:
        with producer.transaction():
            producer.send("t", b"before").result(10)
        cluster.delete_topic("t")
        cluster.create_topic("t")
        with producer.transaction():
            producer.send("t", b"after").result(10)
    assert coordinator.values("t", 0) == [b"after"]
