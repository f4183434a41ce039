"""Transactions in partitions of a whole cluster, with the requests of a coordinator made by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from raylog.actors.replica.verifying import TransactionVerifier
from raylog.base.errors import (
    ConnectionFailed,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    RaylogError,
    TransactionCoordinatorFenced,
)
from raylog.base.ids import LATEST, TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer, Consumer
from raylog.client.types import Record
from raylog.protocol.replica import READ_COMMITTED, READ_UNCOMMITTED
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.reads.test_near_reads import count_opened
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

HERE = TopicPartition("t", 0)
SLEEPS = {"replica.sleep.after.ms": "1000"}
Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No coordinator knows these transactions: the leaders' questions are answered by hand as well."""

    async def knows(self: TransactionVerifier, question: object) -> None:
        return None

    monkeypatch.setattr(TransactionVerifier, "_query", knows)


async def until_led(work: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat a request until a leader takes it: another leader is elected, or the partition wakes."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await work()
            except (NotLeaderOrFollower, FencedLeaderEpoch, ConnectionFailed, OSError):
                await asyncio.sleep(0.02)


async def write(talk: Talk, *values: bytes, producer: int = 7, epoch: int = 0, sequence: int = 0) -> int:
    """Append a batch of a producer's transaction; returns its first offset."""
    stamp = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    mark: dict[str, Any] = {"attributes": TRANSACTIONAL_BIT, "transactional_id": "by hand"}
    return await until_led(lambda: talk.produce("t", *values, **{**stamp, **mark}))


async def end(talk: Talk, *, committed: bool, producer: int = 7, epoch: int = 1, coordinator: int = 0) -> None:
    """Write the marker, as a coordinator does: again, until a leader has."""

    async def once() -> None:
        head, endpoint = await talk.leader("t")
        await talk.call(endpoint, "write_txn_markers", [*head, producer, epoch, coordinator, committed, 5_000])

    await until_led(once)


async def create_asleep(talk: Talk) -> None:
    """Create the topic where partitions sleep; it begins so."""
    await talk.broker("create_topic", ["t", 1, 3, None, {}, False, 5_000])


async def log_end(talk: Talk, level: int) -> int:
    """Return the end that readers of this isolation level see."""
    head, endpoint = await talk.leader("t")
    return int((await talk.call(endpoint, "list_offsets", [*head, LATEST, level])).args[0])


COMMITTED: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}


def reader(cluster: LocalCluster, **more: Any) -> AsyncConsumer:
    return AsyncConsumer("t", **{**cluster.clients(), **COMMITTED, **more})


def columns(cluster: LocalCluster, count: int) -> list[int]:
    """Read the topic as columns; returns the offsets."""
    found: list[int] = []
    with Consumer("t", **{**cluster.clients(), **COMMITTED}) as consumer:
        while len(found) < count:
            polled = consumer.consume_batch(count, timeout=10)
            assert len(polled), f"nothing came behind {len(found)} records"
            found += polled.offsets
    return found


async def take(consumer: AsyncConsumer, count: int) -> list[Record]:
    found: list[Record] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += records
    return found


@in_cluster()
async def test_a_marker_is_on_all_replicas_when_it_is_answered(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await write(talk, b"x")
    assert [await log_end(talk, level) for level in (READ_UNCOMMITTED, READ_COMMITTED)] == [1, 0]
    await end(talk, committed=True)
    for replica in cluster.replicas.values():
        assert replica.status()["log_end_offset"] == 2
    assert await log_end(talk, READ_COMMITTED) == 2


@in_cluster()
async def test_a_follower_does_not_take_a_marker(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await write(talk, b"x")
    head, leader = await talk.leader("t")
    args = [*head, 7, 1, 0, True, 5_000]
    (follower, *_) = [each.endpoint for each in cluster.replicas.values() if each.endpoint != leader]
    await refused(talk.call(follower, "write_txn_markers", args), NotLeaderOrFollower)
    await refused(talk.call(leader, "describe_producers", [head[0], 0, 99]), RaylogError)
    await end(talk, committed=True, coordinator=4)
    await write(talk, b"y", epoch=1)
    await refused(end(talk, committed=True, epoch=2, coordinator=3), TransactionCoordinatorFenced)
    (known,) = (await talk.call(leader, "describe_producers", head)).args
    assert (known[:3], known[4:]) == ([7, 1, 0], [4, 2])


@in_cluster()
async def test_a_new_leader_knows_what_is_open_and_what_was_aborted(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await write(talk, b"lost")
    await end(talk, committed=False)
    await write(talk, b"kept", producer=8)
    await end(talk, committed=True, producer=8)
    await write(talk, b"open", producer=9)
    async with reader(cluster) as consumer:
        assert [(each.offset, each.value) for each in await take(consumer, 1)] == [(2, b"kept")]
        leader = (await talk.partition("t")).leader
        await cluster.stop_replica("t", 0, leader)
        await talk.until("t", lambda row: row.leader not in (leader, -1) and row.port > 0)
        assert await log_end(talk, READ_COMMITTED) == 4
        await end(talk, committed=True, producer=9)
        assert [each.value for each in await take(consumer, 1)] == [b"open"]
    async with reader(cluster) as consumer:
        assert [each.value for each in await take(consumer, 2)] == [b"kept", b"open"]


@in_cluster()
async def test_files_and_fetches_give_the_same_committed_records(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    expected: list[int] = []
    large = bytes(40_000)
    for number in range(12):
        producer, epoch = 7 + number % 3, number // 3
        first = await write(talk, large, large, producer=producer, epoch=epoch)
        await talk.produce("t", b"plain")
        committed = number % 2 == 0
        await end(talk, committed=committed, producer=producer, epoch=epoch + 1)
        expected += [first, first + 1, first + 2] if committed else [first + 2]
    with pytest.MonkeyPatch.context() as patch:
        opened = count_opened(patch)
        for near in (True, False):
            opened.clear()
            async with reader(cluster, short_circuit_reads=near, max_partition_fetch_bytes=150_000) as consumer:
                assert [each.offset for each in await take(consumer, len(expected))] == expected
            assert bool(opened) is near
        assert await asyncio.to_thread(columns, cluster, len(expected)) == expected


@in_cluster(config=SLEEPS)
async def test_a_partition_sleeps_only_when_its_transactions_have_ended(cluster: LocalCluster, talk: Talk) -> None:
    await create_asleep(talk)
    await write(talk, b"x")
    with pytest.raises(AssertionError, match="sleeps"):
        await eventually(lambda: not cluster.replicas, what="the partition sleeps", timeout_s=3)
    assert len(cluster.replicas) == 3
    await end(talk, committed=True)
    await eventually(lambda: not cluster.replicas, what="the partition sleeps")


@in_cluster(config=SLEEPS)
async def test_a_marker_wakes_a_partition_that_sleeps(cluster: LocalCluster, talk: Talk) -> None:
    await create_asleep(talk)
    await until_led(lambda: talk.produce("t", b"x"))
    await eventually(lambda: not cluster.replicas, what="the partition sleeps")
    assert await log_end(talk, READ_COMMITTED) == 1
    assert not cluster.replicas, "its broker answers for it"
    await end(talk, committed=False)
    assert await log_end(talk, READ_COMMITTED) == 2
