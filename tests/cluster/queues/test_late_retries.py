"""Retries that are too late to wait in their partition: a copy waits, and comes to the group alone."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import InvalidRequest
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.queues.consumer import QueueMessage
from raylog.core.dead_letters import cause_of
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, read_all, run, send
from tests.cluster.talk import Talk
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(90)
SOON = {"queue.retry.max.ms": "100"}
QUICK: dict[str, Any] = {"heartbeat_interval_ms": 200, "lock": "20s"}


async def made(cluster: LocalCluster, values: list[bytes], config: dict[str, str], *, partitions: int = 1) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("jobs", partitions=partitions, replication_factor=3, config={**SOON, **config})
    await send(cluster, "jobs", values)


def leader_of(cluster: LocalCluster, topic: str) -> int:
    known = cluster.running().image.topics.get(topic)
    return -1 if known is None else known.partitions[0].leader


def has_leader(cluster: LocalCluster, topic: str) -> bool:
    return leader_of(cluster, topic) >= 0


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_late_retry_comes_back_to_its_group_alone_with_its_count(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await made(cluster, [b"a", b"b"], {})
        stamps: dict[bytes, int] = {}
        async with consumer(cluster, **QUICK) as worker, consumer(cluster, group_id="others", **QUICK) as other:
            for message in [await worker.getone(timeout_ms=8_000), await worker.getone(timeout_ms=8_000)]:
                assert message is not None
                message.retry(delay="1500ms") if message.value == b"a" else message.ack()
                stamps[message.value] = message.timestamp_ms
            await worker.commit()
            began_s = now_s()
            async with AsyncAdmin(**cluster.clients()) as admin:
                await eventually(lambda: "retry.workers.jobs" in cluster.running().image.topics, what="the retry topic")

                async def is_free() -> bool:
                    return (await admin.describe_queue("workers", "jobs"))[0].backlog == 0

                for _ in range(200):
                    if await is_free():
                        break
                    await asyncio.sleep(0.02)
                assert await is_free(), "the partition keeps nothing of it"
            again = await worker.getone(timeout_ms=15_000)
            assert again is not None
            assert (again.value, again.delivery_count, again.topic) == (b"a", 2, "retry.workers.jobs")
            assert again.timestamp_ms == stamps[b"a"], "its own, though the copy was due later"
            assert now_s() - began_s >= 1.3
            again.retry(delay="300ms")
            third = await worker.getone(timeout_ms=15_000)
            assert third is not None
            assert (third.value, third.delivery_count, third.topic) == (b"a", 3, "retry.workers.jobs")
            assert third.timestamp_ms == stamps[b"a"]
            third.ack()
            await worker.commit()
            seen = [await other.getone(timeout_ms=8_000), await other.getone(timeout_ms=8_000)]
            assert [message.value for message in seen if message is not None] == [b"a", b"b"]
            assert await other.getone(timeout_ms=300) is None, "the copy is of the other group"
        async with AsyncConsumer(auto_offset_reset="earliest", **cluster.clients()) as reader:
            reader.assign([TopicPartition("jobs", 0)])
            found = (await reader.getmany(timeout_ms=8_000)).values()
            assert [record.value for records in found for record in records] == [b"a", b"b"]

    run(tmp_path, story)


def test_counts_go_on_in_the_copy_and_its_dead_letter_names_the_origin(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await made(cluster, [b"a"], {"queue.order": "key"})
        options = {**QUICK, "retry": "300ms 300ms", "dead_letter_topic": "dlq"}
        counts: list[int] = []
        stamp_ms = 0
        async with consumer(cluster, **options) as worker:
            for _ in range(3):
                message = await worker.getone(timeout_ms=15_000)
                assert message is not None
                counts.append(message.delivery_count)
                stamp_ms = message.timestamp_ms
                message.retry(reason="no luck")
            await worker.commit()
            assert counts == [1, 2, 3]
            letter = (await read_all(cluster, "dlq", 1))[0]
        cause = cause_of(letter.headers)
        assert cause is not None
        assert (cause.topic, cause.partition, cause.offset, cause.delivery_count) == ("jobs", 0, 0, 3)
        async with AsyncConsumer(**cluster.clients()) as reader:
            reader.assign([TopicPartition("jobs", 0)])
            await reader.seek_to_beginning()
            (record,) = next(iter((await reader.getmany(timeout_ms=8_000)).values()))
        assert record.timestamp_ms == stamp_ms == cause.timestamp_ms
        assert not [name for name, _ in letter.headers if name.startswith("raylog-retry")]

    run(tmp_path, story)


def test_each_late_retry_comes_once_though_leaders_are_replaced(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        values = [b"%d" % number for number in range(150)]
        await made(cluster, values, {})
        taken: list[bytes] = []
        async with consumer(cluster, **QUICK) as worker, consumer(cluster, **QUICK) as other:

            async def work(handle: QueueMessage) -> None:
                if handle.topic == "jobs":
                    handle.retry(delay="2s")
                else:
                    taken.append(handle.value)

            runs = [asyncio.create_task(each.run(work, concurrency=50)) for each in (worker, other)]
            for topic in ("jobs", "__share_state", "__scheduled"):
                await eventually(partial(has_leader, cluster, topic), what=f"{topic} has a leader")
                await cluster.stop_replica(topic, 0, leader_of(cluster, topic))
            await eventually(lambda: len(set(taken)) == len(values), 60.0, what="all have come")
            worker.end()
            other.end()
            await asyncio.gather(*runs)
        records = await read_all(cluster, "retry.workers.jobs", len(values))
        assert sorted(record.value for record in records) == sorted(values), "one copy of each"

    run(tmp_path, story)


def test_without_delays_a_late_retry_is_refused(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await made(cluster, [b"a"], {"delay.enable": "false"})
        async with consumer(cluster, **QUICK) as worker:
            message = await worker.getone(timeout_ms=8_000)
            assert message is not None
            message.retry(delay="1h")
            with pytest.raises(InvalidRequest, match=r"by 100 ms at most.*delay\.enable is false"):
                await worker.commit()

    run(tmp_path, story)
