"""Room in a queue: whatever frees it, fetches that wait go on at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, run, send
from tests.cluster.talk import Talk

pytestmark = pytest.mark.timeout(120)


async def fill(cluster: LocalCluster, count: int, config: dict[str, str]) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("jobs", partitions=1, replication_factor=3, config=config)
    await send(cluster, "jobs", [b"%d" % number for number in range(count)])


def test_retries_with_a_pause_make_room_for_what_comes_next(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, 30, {"queue.acquired.max": "3"})
        clock = asyncio.get_running_loop().time
        async with consumer(cluster) as worker:
            first = await worker.getone(timeout_ms=20_000)
            assert first is not None
            began = clock()
            first.retry(delay="60s")
            for _ in range(29):
                message = await worker.getone(timeout_ms=15_000)
                assert message is not None
                message.retry(delay="60s")
            assert clock() - began < 10, "a fetch that is not woken waits for 20 s"

    run(tmp_path, story)


def test_dead_letters_that_are_stored_make_room_in_the_window(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, 12, {"queue.window.max": "3"})
        clock = asyncio.get_running_loop().time
        async with consumer(cluster, dead_letter_topic="dlq.jobs") as worker:
            first = await worker.getone(timeout_ms=20_000)
            assert first is not None
            began = clock()
            first.reject("bad")
            for _ in range(11):
                message = await worker.getone(timeout_ms=15_000)
                assert message is not None
                message.reject("bad")
            assert clock() - began < 10

    run(tmp_path, story)
