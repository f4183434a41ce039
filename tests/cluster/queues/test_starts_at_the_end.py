"""Groups that begin at the end: what came when they worked already is theirs, also in partitions that are new."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylog.client.admin.admin import AsyncAdmin
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, read_all, run, send
from tests.cluster.talk import Talk
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)


async def create(cluster: LocalCluster, config: dict[str, str]) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("jobs", partitions=1, replication_factor=3, config=config)


def test_partitions_that_are_added_begin_at_their_start(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, {})
        await send(cluster, "jobs", [b"before"])
        async with consumer(cluster, auto_offset_reset="latest", metadata_max_age_ms=500) as worker:
            assert await worker.getone(timeout_ms=1_000) is None, "the group begins at the end"
            async with AsyncAdmin(**cluster.clients()) as admin:
                await admin.create_partitions("jobs", 2)
            async with AsyncProducer(**cluster.clients()) as producer:
                for number in range(5):
                    await (await producer.send("jobs", b"%d" % number, partition=1))
            found: list[bytes] = []
            while len(found) < 5:
                message = await worker.getone(timeout_ms=20_000)
                assert message is not None, found
                found.append(message.value)
                message.ack()
            assert found == [b"%d" % number for number in range(5)]

    run(tmp_path, story)


def test_late_retries_come_to_a_group_that_began_at_the_end(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, {"queue.retry.max.ms": "500"})
        async with consumer(cluster, auto_offset_reset="latest") as worker:
            assert await worker.getone(timeout_ms=500) is None
            await send(cluster, "jobs", [b"later"])
            message = await worker.getone(timeout_ms=20_000)
            assert message is not None
            message.retry(delay="1s")
            await worker.commit()
            await eventually(lambda: "retry.workers.jobs" in cluster.running().image.topics, what="it is copied")
        await read_all(cluster, "retry.workers.jobs", 1)  # it is delivered while no member of the group is there
        async with consumer(cluster, auto_offset_reset="latest") as worker:
            message = await worker.getone(timeout_ms=20_000)
            assert message is not None
            assert (message.value, message.delivery_count) == (b"later", 2)

    run(tmp_path, story)
