"""Records deleted at the beginning of a partition, through real replicas, sockets and files (KIP-107)."""

import asyncio

import pytest

from raylog.actors.clock import wall_ms
from raylog.base.errors import (
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.base.ids import EARLIEST, TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.storage.batch.header import CONTROL_BIT
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

SMALL_SEGMENTS = {"segment.bytes": 1024, "file.delete.delay.ms": 0}
WHERE = TopicPartition("t", 0)


def admin_of(cluster: LocalCluster) -> AsyncAdmin:
    return AsyncAdmin(**cluster.clients())


def starts(cluster: LocalCluster) -> set[object]:
    return {replica.status()["log_start_offset"] for replica in cluster.replicas.values()}


@in_cluster()
async def test_records_are_deleted_on_every_replica_before_the_call_answers(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config=SMALL_SEGMENTS)
    for number in range(40):
        await talk.produce("t", b"%d" % number * 50)
    sizes = {broker: cluster.replica("t", 0, broker).status()["size_bytes"] for broker in (1, 2, 3)}
    async with admin_of(cluster) as admin:
        assert await admin.delete_records({("t", 0): 30}) == {WHERE: 30}
        assert starts(cluster) == {30}
        for broker, size in sizes.items():
            kept = cluster.replica("t", 0, broker).status()["size_bytes"]
            assert isinstance(size, int)
            assert isinstance(kept, int)
            assert kept < size / 2, "whole segments are deleted"
        assert await admin.delete_records({("t", 0): 10}) == {WHERE: 30}, (
            "a deletion of deleted records changes nothing"
        )
        assert (await talk.list_offsets("t", EARLIEST))[0] == 30
        await refused(talk.fetch("t", 29), OffsetOutOfRange)
        assert (await talk.fetch("t", 30)).records[0][0] == 30
        assert await admin.delete_records({("t", 0): -1}) == {WHERE: 40}
    assert starts(cluster) == {40}


@in_cluster()
async def test_a_range_that_is_not_committed_is_refused_with_the_range(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"0", b"1", b"2")
    async with admin_of(cluster) as admin:
        with pytest.raises(OffsetOutOfRange, match="starts at 0 and is committed up to 3"):
            await admin.delete_records({("t", 0): 4})
        with pytest.raises(OffsetOutOfRange, match="`-1` for all"):
            await admin.delete_records({("t", 0): -2})
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, not 7"):
            await admin.delete_records({("t", 7): 1})
        with pytest.raises(UnknownTopicOrPartition):
            await admin.delete_records({("no-such-topic", 0): 1}, timeout_s=3)
    assert starts(cluster) == {0}


@in_cluster()
async def test_deleted_records_stay_deleted_after_elections_and_crashes(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    for number in range(10):
        await talk.produce("t", b"%d" % number)
    async with admin_of(cluster) as admin:
        await admin.delete_records({("t", 0): 6})
    old = (await talk.partition("t")).leader
    spec = await cluster.stop_replica("t", 0, old)
    await talk.until("t", lambda row: row.leader not in (old, -1))
    assert (await talk.list_offsets("t", EARLIEST))[0] == 6
    await cluster.ensure(spec)
    await talk.whole("t")
    specs = [await cluster.crash_replica("t", 0, broker) for broker in (1, 2, 3)]
    for item in specs:
        await cluster.ensure(item)
    await talk.whole("t")
    assert starts(cluster) == {6}
    assert (await talk.fetch("t", 6)).records == [(number, b"%d" % number) for number in range(6, 10)]


@in_cluster()
async def test_a_returning_replica_adopts_the_log_start_before_it_may_lead(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"0", b"1", b"2", b"3")
    leader = (await talk.partition("t")).leader
    away = next(broker for broker in (1, 2, 3) if broker != leader)
    spec = await cluster.stop_replica("t", 0, away)
    await talk.until("t", lambda row: away not in row.isr)
    async with admin_of(cluster) as admin:
        assert await admin.delete_records({("t", 0): 3}) == {WHERE: 3}, "a replica that is down delays no deletion"
    await cluster.ensure(spec)
    await talk.whole("t")
    assert cluster.replica("t", 0, away).status()["log_start_offset"] == 3


@in_cluster()
async def test_an_empty_replica_is_filled_where_the_log_starts_within_a_batch(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t")
    await talk.produce("t", b"0", b"1", b"2", b"3")
    await talk.produce("t", b"4")
    async with admin_of(cluster) as admin:
        await admin.delete_records({("t", 0): 2})
    leader = (await talk.partition("t")).leader
    empty = next(broker for broker in (1, 2, 3) if broker != leader)
    spec = await cluster.stop_replica("t", 0, empty)
    folder = spec.data_directory / "t-0"
    folder.rename(folder.with_name("lost"))
    await cluster.ensure(spec)
    await talk.whole("t")
    status = cluster.replica("t", 0, empty).status()
    assert (status["log_start_offset"], status["log_end_offset"]) == (2, 5)
    await cluster.stop_replica("t", 0, leader)
    await talk.until("t", lambda row: row.leader not in (leader, -1))
    assert (await talk.list_offsets("t", EARLIEST))[0] == 2
    assert (await talk.fetch("t", 2)).records == [(2, b"2"), (3, b"3"), (4, b"4")]


@in_cluster()
async def test_a_hanging_replica_is_named_at_the_deadline_and_deletion_goes_on(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t")
    await talk.produce("t", b"0", b"1", b"2")
    leader = (await talk.partition("t")).leader
    hanging = next(broker for broker in (1, 2, 3) if broker != leader)
    resume = cluster.pause_fetching("t", 0, hanging)
    async with admin_of(cluster) as admin:
        error = await refused(admin.delete_records({("t", 0): 2}, timeout_s=1.0), RequestTimedOut)
        assert error.details["low_watermark"] == 0
        assert f"replicas on brokers [{hanging}]" in str(error)
        waiting = asyncio.create_task(admin.delete_records({("t", 0): 2}))
        resume()
        assert await waiting == {WHERE: 2}
    await eventually(lambda: starts(cluster) == {2})


@in_cluster(config={"log.retention.check.interval.ms": "50"})
async def test_retention_follows_its_interval_and_future_timestamps_are_refused(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t", config={"retention.ms": "1", "message.timestamp.after.max.ms": "60000"})
    await refused(talk.produce("t", b"in microseconds", timestamp_ms=wall_ms() * 1000), InvalidTimestamp)
    await refused(talk.produce("t", b"a marker", attributes=CONTROL_BIT), InvalidRecord)
    assert await talk.produce("t", b"old soon") == 0
    await eventually(lambda: starts(cluster) == {1}, what="retention on every replica")
    assert {replica.status()["clock_jump_ms"] for replica in cluster.replicas.values()} == {0}
