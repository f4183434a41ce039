"""Names that clients invent without an end: each kind has a most, and what was there before goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from raylog.base.errors import LimitReached, OffsetMetadataTooLarge, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.rpc import Connection, connect
from raylog.rpc.auth.token_text import parse_token
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster

FEW = {
    "group.initial.rebalance.delay.ms": "50",
    "transactional.id.max": "60",
    "transactional.id.prefix.max": "20",
    "transactional.id.prefix.partitions.max": "50",
    "group.max.groups": "30",
}


async def outcomes(tries: Sequence[Callable[[], Awaitable[Any]]]) -> list[str]:
    """The class of each refusal; empty = it was taken."""
    found = []
    for attempt in tries:
        try:
            await attempt()
        except RaylogError as refusal:
            found.append(type(refusal).__name__)
        else:
            found.append("")
    return found


async def coordinator(talk: Talk, name: str) -> tuple[str, int]:
    _, host, port = (await talk.broker("find_coordinator", ["transaction", name])).args
    return host, port


@in_cluster(brokers=1, config=FEW)
async def test_a_token_fills_its_share_of_transactional_ids(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("out", partitions=1, replication_factor=1)
        topic_id = (await admin.describe_topic("out")).topic_id
        mine = await admin.create_token(write=["out"], transactional_id_prefix="mine-")
    connection = await connect(*await coordinator(talk, "mine-"), secret=parse_token(mine))

    def init(name: str, by: Connection = connection) -> Callable[[], Awaitable[Any]]:
        return lambda: by.call("init_transactions", [name, 60_000], timeout_s=10)

    found = await outcomes([init(f"mine-{number}") for number in range(30)])
    assert found == [""] * 20 + [LimitReached.__name__] * 10
    assert await outcomes([init("mine-3")]) == [""], "an id that is there may have another producer"
    producer_id, epoch, *_ = (await connection.call("init_transactions", ["mine-4", 60_000], timeout_s=10)).args
    rows = [[topic_id, "out", number] for number in range(51)]
    request = ["mine-4", producer_id, epoch, rows]
    add = lambda: connection.call("add_partitions_to_txn", request, timeout_s=10)  # noqa: E731
    assert await outcomes([add]) == [LimitReached.__name__]
    connection.close()
    async with AsyncProducer(transactional_id="another", **cluster.clients()) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send_and_wait("out", b"of another")
        await producer.commit_transaction()
    secret = await talk.connection(await coordinator(talk, "other-"))
    found = await outcomes([init(f"other-{number}", secret) for number in range(60)])
    assert found == [""] * 39 + [LimitReached.__name__] * 21
    assert cluster.fatal == []


@in_cluster(brokers=1, config=FEW)
async def test_groups_and_their_notes_end_somewhere(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("in", partitions=1, replication_factor=1)
        topic_id = (await admin.describe_topic("in")).topic_id
        mine = await admin.create_token(read=["in"], group="mine")
    place = await talk.coordinator("mine")

    def commit(group: str, by: Connection) -> Callable[[], Awaitable[Any]]:
        rows = [[topic_id, "in", 0, 1, -1, ""]]
        return lambda: by.call("offset_commit", [group, -1, "", rows], timeout_s=10)

    connection = await connect(*place, secret=parse_token(mine))
    taken = 0
    for first in range(0, 8_000, 12):  # as many as fit into a frame of a token
        rows = [[topic_id, "in", number, 1, -1, "n" * 4_096] for number in range(first, first + 12)]
        answer = (await connection.call("offset_commit", ["mine", -1, "", rows], timeout_s=10)).args
        taken += sum(code == 0 for _, _, code in answer)
        if any(code for _, _, code in answer):
            assert {code for _, _, code in answer} <= {0, OffsetMetadataTooLarge.code}
            break
    assert taken == 16 * 1024 * 1024 // 4_096
    connection.close()
    secret = await talk.connection(place)
    found = await outcomes([commit(f"g-{number}", secret) for number in range(35)])
    assert found == [""] * 29 + [LimitReached.__name__] * 6
    async with AsyncConsumer(group_id="g-3", enable_auto_commit=False, **cluster.clients()) as consumer:
        await consumer.commit({TopicPartition("in", 0): 1})
        assert await consumer.committed(TopicPartition("in", 0)) == 1
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.delete_group("g-4")
    assert await outcomes([commit("g-40", secret)]) == [""]
    assert cluster.fatal == []


@in_cluster(brokers=1, config=FEW)
async def test_queues_of_a_partition_end_somewhere(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("jobs", partitions=1, replicas=1)
    head, place = await talk.leader("jobs")
    connection = await talk.connection(place)

    async def opened(group: str, member: str = "me") -> str:
        try:
            await connection.call("queue_open", [*head, group, member, {}], timeout_s=20)
        except RaylogError as refusal:
            return type(refusal).__name__
        return ""

    found = [
        await asyncio.gather(*(opened(f"g-{each}") for each in range(first, first + 50)))
        for first in range(0, 1_050, 50)
    ]
    assert [code for some in found for code in some].count("") == 1_000
    assert set(found[-1]) == {LimitReached.__name__}
    assert await opened("g-3", "another") == ""
    assert cluster.fatal == []
