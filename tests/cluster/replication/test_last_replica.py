"""Reading with one replica left of three: all acknowledged records, and the end, at the usual speed (ADR 0025)."""

import asyncio
import time
from typing import Any

import pytest

import raylog
from raylog.base.ids import TopicPartition
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused

T0 = TopicPartition("t", 0)
RECORDS = 100
FIVE_VOTERS = {"metadata.voters.max": "5"}
"""Two brokers may stop without losing the majority of the metadata voters."""


async def read_all(cluster: LocalCluster) -> tuple[list[bytes | None], int, float]:
    """Return the records that a consumer reads, the end that it learns, and the seconds that both took."""
    begun = time.monotonic()
    found: list[bytes | None] = []
    async with raylog.AsyncConsumer(auto_offset_reset="earliest", **cluster.clients()) as consumer, asyncio.timeout(20):
        consumer.assign([T0])
        end = (await consumer.end_offsets([T0]))[T0]
        while len(found) < end:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found.extend(record.value for record in records)
    return found, end, time.monotonic() - begun


async def leave_one(cluster: LocalCluster, talk: Talk, last: int) -> None:
    """Two brokers stop, with their replicas, and stay down."""
    for broker in (await talk.partition("t")).replicas:
        if broker != last:
            await cluster.stop_broker(broker)
            await cluster.stop_replica("t", 0, broker)
    await talk.until("t", lambda row: row.isr == [last] and row.leader == last)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_last_replica_restarts_and_everything_can_be_read(how: str, tmp_path: Any) -> None:
    @in_cluster(brokers=5, config=FIVE_VOTERS)
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await talk.create("t")
        last = (await talk.partition("t")).leader
        for number in range(RECORDS):
            await talk.produce("t", b"%d" % number)
        await leave_one(cluster, talk, last)
        end_replica = cluster.crash_replica if how == "killed" else cluster.stop_replica
        epoch = (await talk.partition("t")).leader_epoch
        await cluster.ensure(await end_replica("t", 0, last))
        await talk.until("t", lambda row: row.leader == last and row.leader_epoch > epoch)
        found, end, seconds = await read_all(cluster)
        assert (found, end) == ([b"%d" % number for number in range(RECORDS)], RECORDS)
        print(f"read after {seconds * 1000:.0f} ms")
        await refused(talk.produce("t", b"more"), raylog.NotEnoughReplicas)
        assert await talk.list_offsets("t", -1) == (RECORDS, -1)

    story(tmp_path)


@in_cluster(brokers=5, config=FIVE_VOTERS)
async def test_a_follower_is_left_that_may_not_know_what_is_committed(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    row = await talk.partition("t")
    last = next(broker for broker in row.replicas if broker != row.leader)
    for number in range(RECORDS):
        await talk.produce("t", b"%d" % number)
    await leave_one(cluster, talk, last)
    found, end, seconds = await read_all(cluster)
    assert (found, end) == ([b"%d" % number for number in range(RECORDS)], RECORDS)
    print(f"read after {seconds * 1000:.0f} ms")
