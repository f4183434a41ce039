"""A leader queries the coordinator before the first batch of a transaction: what no coordinator will end is refused."""

import asyncio
from typing import Any

import pytest

from raylog.actors.replica.verifying import TransactionVerifier
from raylog.base.errors import ConcurrentTransactions, InvalidProducerEpoch, InvalidRequest, InvalidTxnState
from raylog.base.ids import LATEST
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.core.transactions.states import TxnState
from raylog.protocol.replica import READ_COMMITTED
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.cluster.transactions.test_coordinators import ID, QUICK, call, committed_values, coordinator, settled
from tests.cluster.transactions.test_partitions import until_led


async def write(talk: Talk, value: bytes, producer: int, epoch: int, *, sequence: int = 0, name: str = ID) -> int:
    """Append a batch of a transaction as a client does that has its own idea of what is open."""
    stamp = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return await talk.produce("t", value, attributes=TRANSACTIONAL_BIT, transactional_id=name, **stamp)


async def begun(talk: Talk, *topics: str) -> tuple[int, int]:
    """Initialise a producer, and add partition 0 of these topics to its transaction; returns its identity."""
    producer, epoch, *_ = await call(talk, "init_transactions", ID, 60_000)
    for topic in topics:
        (topic_id, *_), _ = await talk.leader(topic)
        await call(talk, "add_partitions_to_txn", ID, producer, epoch, [[topic_id, topic, 0]])
    return producer, epoch


async def stable_end(talk: Talk) -> int:
    head, endpoint = await talk.leader("t")
    return int((await talk.call(endpoint, "list_offsets", [*head, LATEST, READ_COMMITTED])).args[0])


@in_cluster(config=QUICK)
async def test_an_invented_producer_id_opens_no_transaction(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    for name in (ID, ""):
        await refused(write(talk, b"invented", 987_654, 0, name=name), InvalidTxnState)
    await talk.produce("t", b"plain")
    assert await stable_end(talk) == 1
    assert await committed_values(cluster, 1, "t") == [b"plain"]


@in_cluster(config=QUICK)
async def test_a_batch_of_a_partition_that_was_not_added_is_refused(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.create("other")
    producer, epoch = await begun(talk)
    await refused(write(talk, b"nothing is open", producer, epoch), InvalidTxnState)
    producer, epoch = await begun(talk, "other")
    await refused(write(talk, b"not added", producer, epoch), InvalidTxnState)
    producer, epoch = await begun(talk, "other", "t")
    await refused(write(talk, b"under another id", producer, epoch, name="etl-2"), InvalidTxnState)
    assert await write(talk, b"added", producer, epoch) == 0
    await call(talk, "end_txn", ID, producer, epoch, True)
    assert await committed_values(cluster, 1, "t") == [b"added"]


@in_cluster(config=QUICK)
async def test_what_is_open_takes_no_batch_under_another_id(cluster: LocalCluster, talk: Talk) -> None:
    """A writer that may use other transactional ids knows producer id, epoch and sequence of an open transaction."""
    await talk.create("t")
    producer, epoch = await begun(talk, "t")
    assert await write(talk, b"its own", producer, epoch) == 0
    for name in ("etl-2", ""):
        await refused(write(talk, b"strange", producer, epoch, sequence=1, name=name), InvalidTxnState)
    assert await write(talk, b"more of its own", producer, epoch, sequence=1) == 1
    leader = (await talk.partition("t")).leader
    await cluster.stop_replica("t", 0, leader)
    await talk.until("t", lambda row: row.leader not in (leader, -1) and row.port > 0)
    strange = until_led(lambda: write(talk, b"strange", producer, epoch, sequence=2, name="etl-2"))
    await refused(strange, InvalidTxnState)
    assert await until_led(lambda: write(talk, b"the rest", producer, epoch, sequence=2)) == 2
    await call(talk, "end_txn", ID, producer, epoch, True)
    assert await committed_values(cluster, 3, "t") == [b"its own", b"more of its own", b"the rest"]


@in_cluster(config=QUICK)
async def test_a_late_batch_of_an_ended_transaction_is_refused(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    producer, epoch = await begun(talk, "t")
    await call(talk, "end_txn", ID, producer, epoch, False)
    await refused(write(talk, b"late", producer, epoch), InvalidProducerEpoch)
    await settled(talk, TxnState.COMPLETE_ABORT)
    assert await stable_end(talk) == 1, "the marker alone is there"


@in_cluster(config=QUICK)
async def test_a_topic_created_again_is_not_in_the_transaction(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    producer, epoch = await begun(talk, "t")
    await talk.broker("delete_topic", ["t", 5_000])
    await talk.create("t")
    await refused(until_led(lambda: write(talk, b"x", producer, epoch)), InvalidTxnState)


@in_cluster(config=QUICK)
async def test_a_leader_elected_after_the_addition_queries_for_itself(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    producer, epoch = await begun(talk, "t")
    leader = (await talk.partition("t")).leader
    await cluster.stop_replica("t", 0, leader)
    await talk.until("t", lambda row: row.leader not in (leader, -1) and row.port > 0)
    assert await until_led(lambda: write(talk, b"first", producer, epoch)) == 0
    await call(talk, "end_txn", ID, producer, epoch, True)
    assert await committed_values(cluster, 1, "t") == [b"first"]


@in_cluster(config=QUICK)
async def test_a_coordinator_that_restarts_is_queried_again(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    producer, epoch = await begun(talk, "t")
    index, _ = await coordinator(talk)
    await cluster.restart_coordinator("transaction", index)
    assert await write(talk, b"x", producer, epoch) == 0


@in_cluster(config=QUICK)
async def test_batches_wait_in_order_while_the_coordinator_is_queried(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    producer, epoch = await begun(talk, "t")
    pipelined = [write(talk, b"%d" % number, producer, epoch, sequence=number) for number in range(5)]
    assert await asyncio.gather(*pipelined) == [0, 1, 2, 3, 4]


@in_cluster(config=QUICK)
async def test_a_coordinator_out_of_reach_makes_the_producer_try_again(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    producer, epoch = await begun(talk, "t")
    with pytest.MonkeyPatch.context() as patch:

        async def unreachable(self: TransactionVerifier, claim: object) -> None:
            raise ConnectionResetError("no process is there")

        patch.setattr(TransactionVerifier, "_try", unreachable)
        stamp: dict[str, Any] = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": 0}
        stamp |= {"attributes": TRANSACTIONAL_BIT, "transactional_id": ID}
        await refused(talk.produce("t", b"x", timeout_ms=300, **stamp), ConcurrentTransactions)
        head, endpoint = await talk.leader("t")
        with pytest.raises(InvalidRequest):
            await talk.call(endpoint, "produce", [*head, 7, 1_000, ID], b"")
    assert await write(talk, b"x", producer, epoch) == 0


@in_cluster(config=QUICK)
async def test_each_partition_of_a_transaction_is_queried_once(cluster: LocalCluster, talk: Talk) -> None:
    """The cost: one question for a transaction and partition, over a connection that is kept meanwhile."""
    await talk.create("t")
    queried: list[object] = []
    tried = TransactionVerifier._try

    async def counted(self: TransactionVerifier, claim: Any) -> None:
        queried.append(claim)
        await tried(self, claim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionVerifier, "_try", counted)
        async with AsyncProducer(transactional_id=ID, **cluster.clients()) as producer:
            await producer.init_transactions()
            for number in range(10):
                async with producer.transaction():
                    for _ in range(1 + number % 3):
                        await producer.send_and_wait("t", b"%d" % number)
    assert len(queried) == len(set(queried)) == 10
