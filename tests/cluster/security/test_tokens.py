"""Clients with tokens in a whole cluster: what they may do, what they are refused, in which words."""

import asyncio
import time
from typing import Any

import pytest

from raylog.base.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    InvalidConfig,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.admin.tokens import describe_token
from raylog.client.consumer.asynchronous import AsyncConsumer
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.rpc import Grant, mint
from raylog.rpc.auth.token_text import token_text
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster

QUICK = {"group.initial.rebalance.delay.ms": "50", "transaction.state.log.num.partitions": "4"}
UNTIL_S = 30.0


def holder(cluster: LocalCluster, token: str, **more: Any) -> dict[str, Any]:
    """The arguments for a client with nothing but an address and a token."""
    return {"bootstrap": cluster.bootstrap(), "token": token, **more}


async def read_all(cluster: LocalCluster, token: str, count: int, **more: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with AsyncConsumer("in", **holder(cluster, token, auto_offset_reset="earliest", **more)) as consumer:
        async with asyncio.timeout(UNTIL_S):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [record.value for record in records]
        if "group_id" in more:
            await consumer.commit()
    return found


@in_cluster(config=QUICK)
async def test_a_holder_reads_and_writes_what_was_granted(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        for topic in ("in", "out", "other"):
            await admin.create_topic(topic, partitions=2, replication_factor=1)
        reading = await admin.create_token(read=["in"], group="g")
        writing = await admin.create_token(write=["in"])
        async with AsyncProducer(**holder(cluster, writing)) as producer:
            sent = [await producer.send("in", value=b"%d" % number, partition=number % 2) for number in range(10)]
            await asyncio.gather(*sent)
            await admin.create_partitions("in", 3)
            producer_of_all = AsyncProducer(**holder(cluster, writing))
            async with producer_of_all:
                await producer_of_all.send_and_wait("in", value=b"10", partition=2)
            with pytest.raises(ClusterAuthorizationFailed, match="lacks the right to see the topic 'other'"):
                await producer.send_and_wait("other", value=b"no")
        assert sorted(map(int, filter(None, await read_all(cluster, reading, 11)))) == list(range(11))
        assert len(await read_all(cluster, reading, 11, group_id="g")) == 11
        assert (await admin.describe_group("g")).offsets[TopicPartition("in", 2)] == 1
        other = TopicPartition("other", 1)
        async with AsyncConsumer(group_id="g", enable_auto_commit=False, **cluster.clients()) as elsewhere:
            await elsewhere.commit({other: 7})
        assert (await admin.describe_group("g")).offsets[other] == 7
        async with AsyncAdmin(**holder(cluster, reading)) as poor:
            assert {at.topic for at in (await poor.describe_group("g")).offsets} == {"in"}, "of what it reads"
        with pytest.raises(ClusterAuthorizationFailed, match="lacks the group 'h'"):
            await read_all(cluster, reading, 1, group_id="h")
        with pytest.raises(ClusterAuthorizationFailed, match="lacks the right to read 'in'"):
            await read_all(cluster, writing, 1)
        async with AsyncProducer(**holder(cluster, reading, enable_idempotence=False)) as producer:
            with pytest.raises(ClusterAuthorizationFailed, match="lacks the right to write to 'in'"):
                await producer.send_and_wait("in", value=b"no")
        async with AsyncAdmin(**holder(cluster, reading)) as poor:
            assert await poor.list_topics() == ["in"], "all that it may see"
            with pytest.raises(ClusterAuthorizationFailed, match="needs a client's secret"):
                await poor.delete_topic("in")
            with pytest.raises(InvalidConfig, match="cannot make tokens"):
                await poor.create_token(read=["in"])


@in_cluster(config=QUICK)
async def test_a_holder_runs_transactions_with_its_prefix(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("in", partitions=1, replication_factor=1)
        token = await admin.create_token(read=["in"], write=["in"], transactional_id_prefix="sink")
        two_phase = {"transactional_id": "sink-1", "transaction_two_phase_commit_enable": True}
        async with AsyncProducer(**holder(cluster, token, **two_phase)) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            sent = await producer.send("in", value=b"prepared")
            prepared = await producer.prepare_transaction()
            await sent
        async with AsyncProducer(**holder(cluster, token, **two_phase)) as heir:
            await heir.init_transactions(keep_prepared_txn=True)
            await heir.complete_transaction(prepared)
        assert await read_all(cluster, token, 1, isolation_level="read_committed") == [b"prepared"]
        async with AsyncProducer(**cluster.clients(), transactional_id="another") as stranger:
            await stranger.init_transactions()
        async with AsyncAdmin(**holder(cluster, token)) as poor:
            listed = await poor.list_transactions(prefix="sink")
            assert [row.transactional_id for row in listed] == ["sink-1"]
            assert (await poor.describe_transactions(["sink-1"]))["sink-1"].state == "CompleteCommit"
            with pytest.raises(TransactionalIdNotFound):
                await poor.describe_transactions(["sink-2"])
            for refused in (poor.list_transactions(), poor.describe_transactions(["another"])):
                with pytest.raises(ClusterAuthorizationFailed, match="it lacks the transactional id"):
                    await refused
            with pytest.raises(ClusterAuthorizationFailed, match="it lacks the transactional id 'another'"):
                await poor.fence_producers(["another"])
        async with AsyncProducer(**holder(cluster, token, transactional_id="another")) as thief:
            with pytest.raises(ClusterAuthorizationFailed, match="lacks the transactional id 'another'"):
                await thief.init_transactions()


@in_cluster(config=QUICK)
async def test_a_topic_created_again_needs_a_new_token(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("in", partitions=1, replication_factor=1)
        token = await admin.create_token(read=["in"], write=["in"])
        await admin.delete_topic("in")
        async with AsyncProducer(**holder(cluster, token, max_block_ms=3000)) as producer:
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send_and_wait("in", value=b"no")
        await admin.create_topic("in", partitions=1, replication_factor=1)
        async with AsyncProducer(**holder(cluster, token)) as producer:
            with pytest.raises(ClusterAuthorizationFailed, match="created again after this client's token was made"):
                await producer.send_and_wait("in", value=b"no")


@in_cluster(brokers=1)
async def test_wrong_tokens_are_refused_in_one_sentence(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("in", partitions=1, replication_factor=1)
        brief = await admin.create_token(read=["in"], lifetime_s=0.01)
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'in'"):
            await admin.create_token(read=["inn"])
    with pytest.raises(AuthenticationFailed, match=r"that this cluster does not have.*Make a new one"):
        async with AsyncAdmin(**holder(cluster, token_text(mint(b"another cluster's", Grant(2**33))))):
            pass
    deadline = time.monotonic() + UNTIL_S
    while time.time() < describe_token(brief).expires_s:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    with pytest.raises(AuthenticationFailed, match=r"it has expired\. Make a new one"):
        async with AsyncAdmin(**holder(cluster, brief)):
            pass
