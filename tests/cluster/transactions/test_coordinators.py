"""Transaction coordinators on a cluster: outcomes reach every partition and group, whatever ends meanwhile."""

import asyncio
from typing import Any

import pytest

from raylog.actors.coordinators.state_log import PRODUCER_EPOCH_MAX, Incarnation, StateLog
from raylog.actors.coordinators.stored_rows import encoded_row
from raylog.actors.metrics.collector import MetricsClient
from raylog.actors.metrics.coordinators import transaction_metrics
from raylog.base.errors import InvalidProducerEpoch, NotCoordinator, ProducerFenced
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.client.types import OffsetAndMetadata
from raylog.core.metrics.exposition import render
from raylog.core.transactions.states import TxnState
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

ID = "etl"
QUICK = {"group.initial.rebalance.delay.ms": "50", "transaction.state.log.num.partitions": "3"}
READ_S = 15.0


async def committed_values(cluster: LocalCluster, count: int, *topics: str) -> list[bytes]:
    """Return the first committed records, sorted; fails when there are fewer."""
    options: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "group_id": None}
    found: list[bytes] = []
    async with AsyncConsumer(*topics, **options, **cluster.clients()) as consumer, asyncio.timeout(READ_S):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [record.value for record in records]
    return sorted(found)


async def coordinator(talk: Talk, name: str = ID) -> tuple[int, tuple[str, int]]:
    """Return the number and the endpoint of the coordinator of a transactional id."""
    index, host, port = (await talk.broker("find_coordinator", ["transaction", name])).args
    return index, (host, port)


async def call(talk: Talk, method: str, *args: object, name: str = ID) -> Any:
    _, endpoint = await coordinator(talk, name)
    return (await talk.call(endpoint, method, list(args))).args


async def settled(talk: Talk, *states: TxnState) -> None:
    """Wait until the transactional id is in one of these states."""
    wanted = {state.value for state in states}
    deadline = asyncio.get_running_loop().time() + READ_S
    while (found := await call(talk, "describe_transaction", ID))["state"] not in wanted:
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.02)


@in_cluster(config=QUICK)
async def test_what_is_committed_is_read_and_what_is_aborted_is_not(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        for topic in ("orders", "bills"):
            await admin.create_topic(topic, partitions=2, replication_factor=3)
    async with AsyncProducer(transactional_id=ID, **cluster.clients()) as producer:
        await producer.init_transactions()
        for number in range(6):
            await producer.begin_transaction()
            for topic in ("orders", "bills"):
                await producer.send_and_wait(topic, f"{topic}-{number}".encode(), partition=number % 2)
            await (producer.commit_transaction() if number % 3 else producer.abort_transaction())
        expected = sorted(f"{topic}-{number}".encode() for topic in ("orders", "bills") for number in (1, 2, 4, 5))
        assert await committed_values(cluster, len(expected), "orders", "bills") == expected
        await settled(talk, TxnState.COMPLETE_COMMIT)
        described = await call(talk, "describe_transaction", ID)
        assert described["coordinator"] == (await coordinator(talk))[0]
        assert await call(talk, "list_transactions", [], -1) == [[ID, described["producer_id"], "CompleteCommit"]]
        metrics = await call(talk, "transaction_metrics")
        assert metrics["states"] == {"CompleteCommit": 1}
        assert metrics["counters"]["committed"] == 4
        assert metrics["counters"]["aborted"] == 2
        client = MetricsClient(SECRET)
        page = render(await transaction_metrics(client, cluster.running().image, "127.0.0.1"))
        client.close()
        name = f"transaction-{described['coordinator']}"
        assert f'raylog_transactions_committed_total{{coordinator="{name}"}} 4' in page
        assert f'raylog_transactional_ids{{coordinator="{name}",state="CompleteCommit"}} 1' in page


@in_cluster(config=QUICK)
async def test_offsets_of_a_group_take_effect_with_the_commit(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    at = TopicPartition("t", 0)
    async with (
        AsyncProducer(transactional_id=ID, **cluster.clients()) as producer,
        AsyncConsumer(group_id="g", isolation_level="read_committed", **cluster.clients()) as consumer,
    ):
        await producer.init_transactions()
        for offset, commits in ((3, True), (5, False), (7, True)):
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"x")
            await producer.send_offsets_to_transaction({at: OffsetAndMetadata(offset)}, consumer.group_metadata())
            await (producer.commit_transaction() if commits else producer.abort_transaction())
            expected = offset if commits else 3
            assert await consumer.committed(at) == expected


@in_cluster(config=QUICK)
async def test_offsets_count_for_the_topic_whose_records_were_read(cluster: LocalCluster, talk: Talk) -> None:
    """A topic created again had the offset of the earlier one, and its first records were never read."""
    at = TopicPartition("in", 0)
    options: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False}
    async with AsyncAdmin(**cluster.clients()) as admin:
        for topic in ("in", "out"):
            await admin.create_topic(topic, partitions=1, replication_factor=1)
        async with (
            AsyncProducer(**cluster.clients()) as source,
            AsyncProducer(transactional_id=ID, **cluster.clients()) as producer,
            AsyncConsumer("in", auto_offset_reset="earliest", **options, **cluster.clients()) as consumer,
        ):
            await producer.init_transactions()
            for number in range(3):
                await source.send_and_wait("in", b"%d" % number)
            read: list[object] = []
            async with asyncio.timeout(READ_S):
                while len(read) < 3:
                    read += (await consumer.getmany(timeout_ms=200)).get(at, [])
            earlier = (await admin.describe_topics(["in"]))["in"].topic_id
            await admin.delete_topic("in")
            await admin.create_topic("in", partitions=1, replication_factor=1)
            now = (await admin.describe_topics(["in"]))["in"].topic_id
            await producer.begin_transaction()
            await producer.send_and_wait("out", b"of the three")
            await producer.send_offsets_to_transaction({at: 3}, consumer.group_metadata())
            await producer.commit_transaction()

        async def offset_of(topic_id: str) -> int:
            fetched = await talk.call(await talk.coordinator("g"), "offset_fetch", ["g", [[topic_id, "in", 0]]])
            return int(fetched.args[0][3])

        deadline = asyncio.get_running_loop().time() + READ_S
        while await offset_of(earlier) != 3:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        assert await offset_of(now) == -1


@in_cluster(config=QUICK)
async def test_a_coordinator_that_ends_leaves_its_transactions_to_the_next(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    async with AsyncProducer(transactional_id=ID, **cluster.clients()) as producer:
        await producer.init_transactions()
        index, _ = await coordinator(talk)
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait("t", str(number).encode())
            await producer.flush()
            if number == 1:
                await cluster.restart_coordinator("transaction", index)
            await producer.commit_transaction()
            if number == 2:
                await cluster.restart_coordinator("transaction", index)
        assert await committed_values(cluster, 4, "t") == [b"0", b"1", b"2", b"3"]


@in_cluster(config=QUICK)
async def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    async with AsyncProducer(transactional_id=ID, **cluster.clients()) as old:
        await old.init_transactions()
        await old.begin_transaction()
        await old.send_and_wait("t", b"old")
        async with AsyncProducer(transactional_id=ID, **cluster.clients()) as new:
            await new.init_transactions()
            await refused(old.commit_transaction(), ProducerFenced, InvalidProducerEpoch)
            async with new.transaction():
                await new.send_and_wait("t", b"new")
        assert await committed_values(cluster, 1, "t") == [b"new"]


@in_cluster(config=QUICK)
async def test_a_transaction_past_its_timeout_is_aborted(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    async with AsyncProducer(transactional_id=ID, transaction_timeout_ms=300, **cluster.clients()) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"late")
        await settled(talk, TxnState.COMPLETE_ABORT)
        await refused(producer.commit_transaction(), ProducerFenced, InvalidProducerEpoch)
    assert (await call(talk, "describe_transaction", ID))["partitions"] == []


@in_cluster(config=QUICK)
async def test_a_topic_that_is_deleted_meanwhile_does_not_hold_up_the_end(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("kept")
    await talk.create("deleted")
    async with AsyncProducer(transactional_id=ID, **cluster.clients()) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        for topic in ("kept", "deleted"):
            await producer.send_and_wait(topic, b"x")
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.delete_topic("deleted")
        await producer.commit_transaction()
        await settled(talk, TxnState.COMPLETE_COMMIT)
        assert await committed_values(cluster, 1, "kept") == [b"x"]


@in_cluster(config=QUICK)
async def test_a_leader_that_changes_gets_the_marker_of_the_one_before(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    async with AsyncProducer(transactional_id=ID, **cluster.clients()) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send_and_wait("t", b"0")
        await settled(talk, TxnState.COMPLETE_COMMIT)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1")
        before = await talk.partition("t")
        await cluster.crash_replica("t", 0, before.leader)
        await producer.commit_transaction()
        await settled(talk, TxnState.COMPLETE_COMMIT)
        assert await committed_values(cluster, 2, "t") == [b"0", b"1"]


@in_cluster(brokers=1, config={**QUICK, "replica.sleep.after.ms": "1000"})
async def test_coordinators_that_are_not_used_have_no_process(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1, config={"replica.sleep.after.ms": "-1"})
    async with AsyncProducer(transactional_id=ID, **cluster.clients()) as producer:
        await producer.init_transactions()
        for value in (b"0", b"1"):
            async with producer.transaction():
                await producer.send_and_wait("t", value)
            await eventually(lambda: not cluster.coordinators, what="the coordinator has ended")
        assert await committed_values(cluster, 2, "t") == [b"0", b"1"]


@in_cluster(config=QUICK)
async def test_a_coordinator_fences_those_with_the_producer_id_before_its_own(
    cluster: LocalCluster, talk: Talk
) -> None:
    """Once its producer epochs are used up, it has another id."""
    await call(talk, "init_transactions", ID, 60_000, -1, -1)
    index, _ = await coordinator(talk)
    server = cluster.coordinators["transaction", index]

    def log(producer_id: int, epoch: int) -> StateLog:
        async def registered() -> Incarnation:
            return Incarnation(PRODUCER_EPOCH_MAX, producer_id, epoch)

        fetch_metadata = server._fetch_metadata
        return StateLog(server._topic, index, secret=SECRET, fetch_metadata=fetch_metadata, registered=registered)

    before, after, later = log(7_000, 32_766), log(7_001, 0), log(7_002, 0)
    row, _ = encoded_row(["fence", -1], None)
    try:
        await before.begin()
        await later.begin()
        await after.begin()
        await after.begin()
        with pytest.raises(InvalidProducerEpoch):
            await before.append([row])
        await after.append([row])
        await later.append([row])
    finally:
        for each in (before, after, later):
            each.close()


@in_cluster(config=QUICK)
async def test_a_coordinator_refuses_what_belongs_to_another(cluster: LocalCluster, talk: Talk) -> None:
    """Its address was another's before: a client that remembers that is sent on."""
    async with AsyncProducer(transactional_id=ID, **cluster.clients()) as producer:
        await producer.init_transactions()
        index, _ = await coordinator(talk)
        others = [await coordinator(talk, name) for name in map(str, range(10))]
        endpoint = next(endpoint for number, endpoint in others if number != index)
        await refused(talk.call(endpoint, "init_transactions", [ID, 60_000, -1, -1]), NotCoordinator)
