"""Room in a queue: whatever frees it, fetches that wait go on at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raylog.base.errors import InvalidRequest
from raylog.base.ids import TopicPartition
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


def test_one_record_that_waits_holds_up_no_other(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, 60, {"queue.window.max": "5"})
        for order in ("none", "key"):
            async with consumer(cluster, group_id=f"workers-{order}", order=order) as worker:
                first = await worker.getone(timeout_ms=20_000)
                assert first is not None
                first.retry(delay="1h")
                for _ in range(59):
                    message = await worker.getone(timeout_ms=15_000)
                    assert message is not None
                    message.ack()
                await worker.commit()
                async with AsyncAdmin(**cluster.clients()) as admin:
                    (queue,) = await admin.describe_queue(f"workers-{order}", "jobs")
            assert (queue.backlog, queue.waiting, queue.available, queue.is_full) == (1, 1, 0, False)

    run(tmp_path, story)


def test_a_full_queue_says_so_and_what_it_waits_for(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, 20, {"queue.window.max": "5"})
        async with consumer(cluster) as worker:
            for _ in range(5):
                message = await worker.getone(timeout_ms=20_000)
                assert message is not None
                message.retry(delay="1h")
            await worker.commit()
            assert await worker.getone(timeout_ms=500) is None
            async with AsyncAdmin(**cluster.clients()) as admin:
                (queue,) = await admin.describe_queue("workers", "jobs")
        assert queue.is_full
        assert queue.oldest is not None
        assert (queue.oldest.first, queue.oldest.state, queue.backlog) == (0, "waiting", 20)

    run(tmp_path, story)


def test_a_reset_goes_to_the_end_at_most_and_to_offsets_only(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, 4, {})
        async with consumer(cluster) as worker:
            message = await worker.getone(timeout_ms=20_000)
            assert message is not None
        async with AsyncAdmin(**cluster.clients()) as admin:
            assert list((await admin.reset_queue("workers", "jobs", to=1_000)).values()) == [4]
            for number in (2**63, 2**70, -3):
                with pytest.raises(InvalidRequest):
                    await admin.reset_queue("workers", "jobs", to=number)
        await send(cluster, "jobs", [b"later"])
        async with consumer(cluster) as worker:
            message = await worker.getone(timeout_ms=20_000)
            assert message is not None
            assert message.value == b"later"

    run(tmp_path, story)


def test_deleted_records_whose_locks_ran_out_are_not_handed_out(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, 10, {})
        async with consumer(cluster, lock="1s", renew_locks=False) as worker:
            held = await worker.getmany(timeout_ms=20_000)
            while len(held) < 10:
                held += await worker.getmany(timeout_ms=5_000)
            async with AsyncAdmin(**cluster.clients()) as admin:
                await admin.delete_records({TopicPartition("jobs", 0): 6})
            found: set[int] = set()
            while found != {6, 7, 8, 9}:
                message = await worker.getone(timeout_ms=15_000)
                assert message is not None, found
                assert message.offset >= 6
                found.add(message.offset)
                message.ack()

    run(tmp_path, story)
