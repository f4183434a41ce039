"""Queues, delayed records and half messages of clients with a token: what it has to grant, and what it keeps out."""

import asyncio
import time
from typing import Any

import pytest

from raylog.base.errors import ClusterAuthorizationFailed
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.half_messages.checking import HalfVerdict, UndecidedHalf
from raylog.client.half_messages.producer import AsyncHalfMessageProducer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from raylog.core.scheduling.envelope import BY_KEY, SCHEDULED_TOPIC, Envelope, HalfName
from raylog.core.scheduling.keys import HELD_MS
from raylog.rpc import Connection, connect
from raylog.rpc.auth.token_text import parse_token
from raylog.storage.batch.header import BatchMeta
from raylog.storage.batch.records import encode_batch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.security.test_tokens import QUICK, holder
from tests.cluster.talk import Talk, in_cluster

READ_S = 20.0
SOON = {"queue.retry.max.ms": "100"}


async def topics(cluster: LocalCluster, *names: str, config: dict[str, str] | None = None) -> dict[str, str]:
    """Create topics; returns their ids."""
    async with AsyncAdmin(**cluster.clients()) as admin:
        for name in names:
            await admin.create_topic(name, partitions=1, replication_factor=1, config=config)
        return {name: found.topic_id for name, found in (await admin.describe_topics(names)).items()}


async def token(cluster: LocalCluster, **rights: Any) -> str:
    async with AsyncAdmin(**cluster.clients()) as admin:
        return await admin.create_token(**rights)


async def values(cluster: LocalCluster, topic: str, count: int) -> list[bytes | None]:
    """The first records of a topic."""
    found: list[bytes | None] = []
    async with AsyncConsumer(auto_offset_reset="earliest", **cluster.clients()) as reader, asyncio.timeout(READ_S):
        reader.assign([TopicPartition(topic, 0)])
        while len(found) < count:
            for records in (await reader.getmany(timeout_ms=200)).values():
                found += [record.value for record in records]
    return found


@in_cluster(brokers=1, config=QUICK)
async def test_a_holder_works_off_the_queue_of_its_group(cluster: LocalCluster, talk: Talk) -> None:
    await topics(cluster, "jobs", "other", config=SOON)
    async with AsyncProducer(**cluster.clients()) as producer:
        for value in (b"done", b"later"):
            await producer.send_and_wait("jobs", value)
    mine = await token(cluster, read=["jobs"], group="workers")
    options: dict[str, Any] = holder(cluster, mine, group_id="workers", heartbeat_interval_ms=200)
    async with AsyncQueueConsumer("jobs", **options) as worker:
        for _ in range(2):
            message = await worker.getone(timeout_ms=15_000)
            assert message is not None
            message.retry(delay="300ms") if message.value == b"later" else message.ack()
        await worker.commit()
        again = await worker.getone(timeout_ms=15_000)
        assert again is not None
        assert (again.value, again.topic) == (b"later", "retry.workers.jobs"), "the topic was born after the token"
        again.ack()
        await worker.commit()
    for refused, says in (
        (await token(cluster, read=["jobs"], group="others"), "lacks the group 'workers'"),
        (await token(cluster, read=["jobs"]), "lacks the group 'workers'"),
        (await token(cluster, write=["jobs"], group="workers"), "lacks the right to read 'jobs'"),
        (await token(cluster, read=["other"], group="workers"), "lacks the right to see the topic 'jobs'"),
    ):
        stranger: dict[str, Any] = holder(cluster, refused, group_id="workers")
        with pytest.raises(ClusterAuthorizationFailed, match=says):
            async with AsyncQueueConsumer("jobs", **stranger) as worker:
                await worker.getone(timeout_ms=15_000)
    with pytest.raises(ClusterAuthorizationFailed, match="lacks the right to write to 'other', to which dead letters"):
        async with AsyncQueueConsumer("jobs", **options, dead_letter_topic="other") as worker:
            await worker.getone(timeout_ms=15_000)


@in_cluster(brokers=1, config=QUICK)
async def test_a_retry_topic_is_read_by_its_group_alone(cluster: LocalCluster, talk: Talk) -> None:
    """Its name follows from those of the group and of the topic: a topic that merely has such a name is none."""
    await topics(cluster, "jobs", "retry.workers.jobs", "retry.others.jobs")
    mine = parse_token(await token(cluster, read=["jobs"], group="workers"))
    for name in ("retry.workers.jobs", "retry.others.jobs"):
        head, place = await talk.leader(name)
        connection = await connect(*place, secret=mine)
        for group in ("workers", "others"):
            with pytest.raises(ClusterAuthorizationFailed, match="it lacks"):
                await connection.call("queue_open", [*head, group, "me", {}], timeout_s=5)
            with pytest.raises(ClusterAuthorizationFailed, match="it lacks"):
                await connection.call("queue_fetch", [*head, group, "me", 10, 1000, 0], timeout_s=5)
        connection.close()


def batch(*headers: list[tuple[str, bytes | None]], due_ms: int = 0) -> bytes:
    due_ms = due_ms or int(time.time() * 1000)
    return encode_batch(None, [b"v"] * len(headers), [due_ms] * len(headers), list(headers), meta=BatchMeta(77, 0, 0))


async def scheduled(connection: Connection, head: list[object], payload: bytes) -> str:
    """Schedule a batch as a foreign client does; the refusal, or nothing."""
    try:
        await connection.call("schedule", [*head, -1, 5_000], payload, timeout_s=10)
    except ClusterAuthorizationFailed as refusal:
        return refusal.message.partition("it lacks ")[2]
    return ""


@in_cluster(brokers=1, config=QUICK)
async def test_a_holder_delays_records_to_what_it_writes(cluster: LocalCluster, talk: Talk) -> None:
    ids = await topics(cluster, "mine", "other")
    writing = await token(cluster, write=["mine"])
    async with AsyncProducer(**holder(cluster, writing)) as producer:
        await producer.send_and_wait("mine", b"later", delay="100ms")
        with pytest.raises(ClusterAuthorizationFailed, match="lacks the right to see the topic 'other'"):
            await producer.send_and_wait("other", b"no", delay="100ms")
    assert await values(cluster, "mine", 1) == [b"later"]
    head, place = await talk.leader(SCHEDULED_TOPIC)
    connection = await connect(*place, secret=parse_token(writing))
    to = {name: [Envelope(name, topic_id, BY_KEY, 0).header()] for name, topic_id in ids.items()}
    for strange in (
        to["other"],
        [Envelope("other", ids["mine"], BY_KEY, 0).header()],
        [Envelope("mine", ids["other"], BY_KEY, 0).header()],
        [Envelope("mine", "", BY_KEY, 0).header()],
        [Envelope("nowhere", ids["mine"], BY_KEY, 0).header()],
    ):
        for payload in (batch(strange), batch(to["mine"], strange), batch(to["mine"]) + batch(strange)):
            assert "the right to write to" in await scheduled(connection, head, payload)
    half = HalfName("orders", "1", 1000).header()
    now_ms = HELD_MS + int(time.time() * 1000)
    assert "the group 'orders'" in await scheduled(connection, head, batch([*to["mine"], half], due_ms=now_ms))
    assert (await connection.call("describe_scheduler", [*head], timeout_s=5)).args
    for method, args in (
        ("cancel_scheduled", [*head, [1], [0]]),
        ("move_scheduled", [*head, 1, 0, 5]),
        ("list_scheduled", [*head, "mine", -1, -1, 2**60, 10]),
        ("find_scheduled", [*head, ids["mine"], "x"]),
        ("list_halves", [*head, "orders", "", "", 10]),
    ):
        with pytest.raises(ClusterAuthorizationFailed, match="needs a client's secret"):
            await connection.call(method, args, timeout_s=5)
    connection.close()
    broker = await connect(*cluster.broker_servers[1].endpoint, secret=parse_token(writing))
    with pytest.raises(ClusterAuthorizationFailed, match="a secret, for another topic than __scheduled"):
        await broker.call("ensure_internal_topic", ["__share_state"], timeout_s=5)
    with pytest.raises(ClusterAuthorizationFailed, match="a secret, for another topic than __scheduled"):
        await broker.call("describe_scheduler", [ids["other"], 0, 0], timeout_s=5)  # it would wake the partition
    broker.close()


@in_cluster(brokers=1, config=QUICK)
async def test_a_holder_prepares_half_messages_of_its_group(cluster: LocalCluster, talk: Talk) -> None:
    await topics(cluster, "bills", "other")
    writing = await token(cluster, write=["bills"], group="orders")
    queried: list[str] = []

    def check(half: UndecidedHalf) -> HalfVerdict:
        queried.append(half.txid)
        return HalfVerdict.COMMIT

    async with AsyncHalfMessageProducer("orders", check, check_after=0, **holder(cluster, writing)) as producer:
        async with await producer.prepare("bills", b"decided", txid="1"):
            pass
        await producer.prepare("bills", b"queried", txid="2")
        assert sorted(filter(None, await values(cluster, "bills", 2))) == [b"decided", b"queried"]
        assert "2" in queried
        with pytest.raises(ClusterAuthorizationFailed, match="lacks the right to see the topic 'other'"):
            await producer.prepare("other", b"no", txid="3")
    async with AsyncHalfMessageProducer("others", **holder(cluster, writing)) as stranger:
        with pytest.raises(ClusterAuthorizationFailed, match="lacks the group 'others'"):
            await stranger.prepare("bills", b"no", txid="1")
    head, place = await talk.leader(SCHEDULED_TOPIC)
    connection = await connect(*place, secret=parse_token(writing))
    for method, args in (
        ("decide_halves", [*head, "others", ["1"], ["COMMIT"], [0]]),
        ("poll_halves", [*head, "others", 0, 10, 1000]),
    ):
        with pytest.raises(ClusterAuthorizationFailed, match="it lacks the group 'others'"):
            await connection.call(method, args, timeout_s=5)
    connection.close()
