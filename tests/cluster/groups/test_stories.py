"""Stories of every course on Kafka, about groups and replicas, as they happen here: with real shells and sockets.

Duplicate consumption, lost messages, a slow poller, offset + 1, asynchronous commits, high watermark and log end.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from raylog.base.errors import CommitFailed, NonEmptyGroup, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.types import OffsetAndMetadata
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

QUICK = {
    "group.initial.rebalance.delay.ms": "50",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "1",
}
AT = TopicPartition("orders", 0)
RECORDS = 10


async def fill(cluster: LocalCluster, count: int = RECORDS) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("orders", partitions=1, replication_factor=3)
    async with AsyncProducer(**cluster.clients()) as producer:
        await asyncio.gather(*[await producer.send("orders", b"%d" % number) for number in range(count)])


def reader(cluster: LocalCluster, **keywords: Any) -> AsyncConsumer:
    options: dict[str, Any] = {
        "group_id": "shop",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 1_000,
        "heartbeat_interval_ms": 100,
    }
    return AsyncConsumer("orders", **options | cluster.clients() | keywords)


async def read(consumer: AsyncConsumer, count: int) -> list[int]:
    """Offsets of the next records."""
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [record.offset for record in records]
    return found


async def crash(consumer: AsyncConsumer) -> None:
    """End a consumer as SIGKILL does: it commits nothing and does not leave its group."""
    engine = consumer._engine
    engine.is_closed = True
    if engine.group is not None:
        await engine.group.close()
    await engine.fetcher.close()
    for task in list(engine._tasks):
        task.cancel()
    await engine.cluster.close()


@in_cluster(config=QUICK)
async def test_a_crash_before_the_commit_hands_records_out_again(cluster: LocalCluster, talk: Talk) -> None:
    """At least once: what was processed and not committed is processed twice, and nothing is left out."""
    await fill(cluster)
    first = reader(cluster)
    await first.start()
    processed = await read(first, RECORDS)
    await first.commit({AT: OffsetAndMetadata(6)})
    await crash(first)
    async with reader(cluster) as second:
        again = await read(second, RECORDS - 6)
        assert again == [6, 7, 8, 9], "from the committed offset on"
    assert sorted({*processed, *again}) == list(range(RECORDS))


@in_cluster(config=QUICK)
async def test_an_early_automatic_commit_loses_what_was_not_processed(cluster: LocalCluster, talk: Talk) -> None:
    """The next poll commits what the last one returned, whether it was processed or only handed to a thread."""
    await fill(cluster)
    processed: list[int] = []
    first = reader(cluster, enable_auto_commit=True, auto_commit_interval_ms=1)
    await first.start()
    handed_over = await read(first, RECORDS)
    await first.getmany(timeout_ms=200)  # the worker has not begun, and this commits its records
    await eventually_committed(first, RECORDS)
    await crash(first)
    async with reader(cluster) as second:
        assert await second.getmany(timeout_ms=1_000) == {}
        assert await second.committed(AT) == RECORDS
    assert sorted(handed_over) == list(range(RECORDS))
    assert processed == [], "all of them are lost"


@in_cluster(config=QUICK)
async def test_commits_behind_finished_work_lose_nothing(cluster: LocalCluster, talk: Talk) -> None:
    """The same crash with a commit for each finished record: the rest comes again."""
    await fill(cluster)
    first = reader(cluster)
    await first.start()
    processed: list[int] = []
    for offset in await read(first, RECORDS):
        if offset == 4:
            break
        processed.append(offset)
        await first.commit({AT: OffsetAndMetadata(offset + 1)})
    await crash(first)
    async with reader(cluster) as second:
        processed += await read(second, RECORDS - 4)
    assert processed == list(range(RECORDS)), "each once"


@in_cluster(config=QUICK)
async def test_a_slow_poller_is_evicted_with_a_message_that_says_why(cluster: LocalCluster, talk: Talk) -> None:
    await fill(cluster)
    async with reader(cluster, client_id="slow", max_poll_interval_ms=300) as slow:
        await read(slow, RECORDS)
        async with reader(cluster, client_id="quick") as quick, AsyncAdmin(**cluster.clients()) as admin:
            # While the slow one works on its records, its heartbeats notice, and it leaves the group.
            assert await read(quick, RECORDS) == list(range(RECORDS)), "the partition went to another member"
            members = (await admin.describe_group("shop")).members
            assert [member.client_id for member in members] == ["quick"]
            with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
                await slow.commit()
            await quick.commit()
            assert await quick.committed(AT) == RECORDS, "the late commit moved nothing back"


@in_cluster(config=QUICK)
async def test_the_committed_offset_is_that_of_the_next_record(cluster: LocalCluster, talk: Talk) -> None:
    """Offset + 1: a consumer that commits the offset of the last record reads it again."""
    await fill(cluster)
    async with reader(cluster) as consumer:
        last = (await read(consumer, RECORDS))[-1]
        await consumer.commit({AT: OffsetAndMetadata(last)})
    async with reader(cluster) as consumer:
        assert await read(consumer, 1) == [last], "one record twice"
        await consumer.commit({AT: OffsetAndMetadata(last + 1)})
    async with reader(cluster) as consumer:
        assert await consumer.getmany(timeout_ms=500) == {}
        assert await consumer.position(AT) == last + 1


@in_cluster(config=QUICK)
async def test_an_asynchronous_commit_is_retried_and_does_not_overtake(cluster: LocalCluster, talk: Talk) -> None:
    """Kafka's users retry a failed commit only if no later one was sent. Here the order of the calls is kept."""
    await fill(cluster)
    async with reader(cluster) as consumer:
        await read(consumer, RECORDS)
        ends: list[tuple[int, RaylogError | None]] = []

        def note(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: RaylogError | None) -> None:
            ends.append((offsets[AT].offset, error))

        await cluster.restart_coordinator("group", 0)
        for offset in (3, 5, 8):
            consumer.commit_nowait({AT: OffsetAndMetadata(offset)}, callback=note)
        await eventually(lambda: len(ends) == 3, 30, "all commits have ended")
        assert ends == [(3, None), (5, None), (8, None)], "each was sent again until the coordinator had it, in order"
        assert await consumer.committed(AT) == 8


@in_cluster(config=QUICK)
async def test_high_watermark_and_log_end_advance_with_three_replicas(cluster: LocalCluster, talk: Talk) -> None:
    """The leader's log end moves with each record, the high watermark with the slowest in-sync replica."""
    await fill(cluster)
    whole = await talk.whole("orders")
    leader = whole.leader
    followers = [broker for broker in (1, 2, 3) if broker != leader]

    def ends() -> dict[int, tuple[object, object]]:
        rows = {broker: cluster.replica("orders", 0, broker).status() for broker in (1, 2, 3)}
        return {broker: (row["high_watermark"], row["log_end_offset"]) for broker, row in rows.items()}

    await eventually(lambda: set(ends().values()) == {(10, 10)}, what="all have all")
    resumed = [cluster.pause_fetching("orders", 0, broker) for broker in followers]
    async with AsyncProducer(acks=1, **cluster.clients()) as producer, AsyncConsumer(**cluster.clients()) as consumer:
        for _ in range(5):
            await (await producer.send("orders", b"later"))
        assert ends() == {leader: (10, 15), followers[0]: (10, 10), followers[1]: (10, 10)}
        assert (await consumer.end_offsets([AT]))[AT] == 10, "readers see what is committed"
        resumed[0]()
        await eventually(lambda: ends()[followers[0]][1] == 15, what="one follower has the records")
        assert ends()[leader][0] == 10, "the other one is in the ISR still"
        resumed[1]()
        await eventually(lambda: set(ends().values()) == {(15, 15)}, what="all have all")
        assert (await consumer.end_offsets([AT]))[AT] == 15


@in_cluster(config=QUICK)
async def test_an_operator_reads_a_day_again(cluster: LocalCluster, talk: Talk) -> None:
    """A reset against the real coordinator: refused while the group reads, then planned, done, and read from there."""
    await fill(cluster)
    async with AsyncAdmin(**cluster.clients()) as admin:
        async with reader(cluster, client_id="shop-1") as consumer:
            await read(consumer, RECORDS)
            await consumer.commit()
            with pytest.raises(NonEmptyGroup, match="shop-1"):
                await admin.reset_offsets("shop", by=-4)
        plan = await admin.reset_offsets("shop", by=-4, dry_run=True)
        assert [(row.before, row.after) for row in plan.offsets] == [(10, 6)]
        assert (await admin.reset_offsets("shop", by=-4)).is_done
        await cluster.restart_coordinator("group", 0)
        async with reader(cluster) as consumer:
            assert await read(consumer, 4) == [6, 7, 8, 9]


async def eventually_committed(consumer: AsyncConsumer, offset: int) -> None:
    async with asyncio.timeout(20):
        while await consumer.committed(AT) != offset:
            await consumer.getmany(timeout_ms=20)
