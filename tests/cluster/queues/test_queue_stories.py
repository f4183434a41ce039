"""Queues over real sockets and files, in one process: hand-outs, verdicts, locks, and leaders that are replaced."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import (
    GroupIdNotFound,
    InconsistentGroupProtocol,
    InvalidRecordState,
    InvalidRequest,
    NonEmptyGroup,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer, QueueMessage, Reject, Retry
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

QUICK = {"group.initial.rebalance.delay.ms": "50"}


async def fill(cluster: LocalCluster, topic: str, values: list[bytes], *, partitions: int = 1, keys: int = 0) -> None:
    """Create a topic with three replicas, and send values to it; with ``keys``, value n has the key n modulo that."""
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic(topic, partitions=partitions, replication_factor=3)
    await send(cluster, topic, values, keys=keys)


async def send(cluster: LocalCluster, topic: str, values: list[bytes], *, keys: int = 0) -> None:
    async with AsyncProducer(**cluster.clients()) as producer:
        futures = [
            await producer.send(topic, value, key=str(number % keys).encode() if keys else None)
            for number, value in enumerate(values)
        ]
        await asyncio.gather(*futures)


def consumer(cluster: LocalCluster, topic: str = "jobs", **keywords: Any) -> AsyncQueueConsumer:
    return AsyncQueueConsumer(topic, **{"group_id": "workers", **cluster.clients(), **keywords})


async def read_all(cluster: LocalCluster, topic: str, count: int) -> list[Any]:
    """The first records of a topic, which may have to be created yet, read as any consumer does."""
    await eventually(lambda: topic in cluster.running().image.topics, what=f"{topic} is there")
    async with AsyncConsumer(auto_offset_reset="earliest", **cluster.clients()) as reader:
        reader.assign([TopicPartition(topic, 0)])
        found: list[Any] = []
        while len(found) < count:
            for records in (await reader.getmany(timeout_ms=10_000)).values():
                found += records
        return found


def run(root: Path, story: Any) -> None:
    in_cluster(brokers=3, config=QUICK)(story)(root)


def test_a_queue_is_forgotten_also_when_its_topic_was_deleted(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"0"])
        async with AsyncAdmin(**cluster.clients()) as admin:
            async with consumer(cluster) as worker:
                (await worker.getmany(timeout_ms=20_000))[0].ack()
                await worker.commit()
                with pytest.raises(NonEmptyGroup):
                    await admin.delete_queue("workers")
            await admin.delete_topic("jobs")
            await admin.delete_queue("workers")
            with pytest.raises(GroupIdNotFound):
                await admin.delete_queue("workers")

    run(tmp_path, story)


def test_each_record_goes_to_one_worker_until_it_is_acknowledged(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        values = [b"%d" % number for number in range(300)]
        await fill(cluster, "jobs", values)
        seen: Counter[bytes] = Counter()
        by_worker: Counter[int] = Counter()

        async def work(number: int, worker: AsyncQueueConsumer) -> None:
            while sum(seen.values()) < len(values):
                for message in await worker.getmany(timeout_ms=200):
                    seen[message.value] += 1
                    by_worker[number] += 1
                    message.ack()
                    await asyncio.sleep(0)

        async with consumer(cluster, max_poll_records=20) as one, consumer(cluster, max_poll_records=20) as other:
            await asyncio.gather(work(1, one), work(2, other))
            await one.commit()
            await other.commit()
        assert seen == Counter(values)
        assert min(by_worker[1], by_worker[2]) > 0, "both had work"
        async with consumer(cluster) as late:
            assert await late.getmany(timeout_ms=500) == []

    run(tmp_path, story)


def test_groups_and_consumers_do_not_influence_one_another(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a", b"b"])
        async with consumer(cluster) as worker:
            for message in await worker.getmany(timeout_ms=10_000):
                message.ack()
        async with consumer(cluster, group_id="others") as worker:
            assert [message.value for message in await worker.getmany(timeout_ms=10_000)] == [b"a", b"b"]
        assert [record.value for record in await read_all(cluster, "jobs", 2)] == [b"a", b"b"]

    run(tmp_path, story)


def test_a_retried_record_waits_at_the_broker(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a"])
        async with consumer(cluster) as worker:
            first = await worker.getone(timeout_ms=10_000)
            assert first is not None
            began = asyncio.get_running_loop().time()
            first.retry(delay="700ms")
            with pytest.raises(InvalidRequest, match="settled already"):
                first.ack()
            again = await worker.getone(timeout_ms=10_000)
            assert again is not None
            assert asyncio.get_running_loop().time() - began >= 0.69
            assert (first.delivery_count, again.delivery_count, again.value) == (1, 2, b"a")
            again.ack()

    run(tmp_path, story)


def test_a_rejected_record_is_a_dead_letter_once(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"bad", b"good"])
        async with consumer(cluster, dead_letter_topic="dlq.jobs") as worker:
            for message in await worker.getmany(timeout_ms=10_000):
                if message.value == b"bad":
                    message.reject("no such city")
                else:
                    message.ack()
            await worker.commit()
            letters = await read_all(cluster, "dlq.jobs", 1)
        headers = dict(letters[0].headers)
        assert letters[0].value == b"bad"
        assert headers["__dlq.errors.message"] == b"no such city"
        assert headers["__dlq.errors.offset"] == b"0"
        assert headers["__dlq.errors.group"] == b"workers"
        assert headers["raylog-dead-reason"] == b"rejected"

    run(tmp_path, story)


def test_what_fails_too_often_is_a_dead_letter_or_undeliverable(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"bad"])
        tries = 0

        async def handler(message: QueueMessage) -> None:
            nonlocal tries
            tries += 1
            raise ValueError("it never works")

        async with consumer(cluster, retry="10ms 20ms", consumer_timeout_ms=3_000) as worker:
            await worker.run(handler)
        assert tries == 3, "one try more than there are pauses"
        letter = (await read_all(cluster, "__undeliverable", 1))[0]
        headers = dict(letter.headers)
        assert headers["raylog-dead-reason"] == b"delivery_limit"
        assert headers["__dlq.errors.delivery.count"] == b"3"
        assert headers["__dlq.errors.message"] == b"ValueError: it never works"

    run(tmp_path, story)


def test_handlers_run_beside_each_other_and_keep_the_order_of_each_key(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"%d" % number for number in range(120)], keys=6)
        seen: dict[bytes, list[int]] = {}
        active: Counter[bytes] = Counter()
        most = 0
        failed: set[int] = set()

        async def handler(message: QueueMessage) -> None:
            nonlocal most
            active[message.key] += 1
            assert active[message.key] == 1, "a key is at one handler at a time"
            most = max(most, sum(active.values()))
            await asyncio.sleep(0.002)
            active[message.key] -= 1
            number = int(message.value)
            if number % 17 == 3 and number not in failed:
                failed.add(number)
                raise Retry(delay="50ms")
            seen.setdefault(message.key, []).append(number)

        workers = [consumer(cluster, order="key", consumer_timeout_ms=1_500, max_poll_records=30) for _ in range(2)]
        for worker in workers:
            await worker.start()
        await asyncio.gather(*(worker.run(handler, concurrency=4) for worker in workers))
        for worker in workers:
            await worker.stop()
        assert sum(map(len, seen.values())) == 120
        assert most > 2
        for numbers in seen.values():
            assert numbers == sorted(numbers), "records of a key come in order, retries included"

    run(tmp_path, story)


def test_a_lock_that_runs_out_makes_its_late_verdict_an_error(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a"])
        failures: list[Any] = []
        options: dict[str, Any] = {"lock": "1s", "on_failed": lambda *row: failures.append(row)}
        async with consumer(cluster, renew_locks=False, **options) as slow:
            late = await slow.getone(timeout_ms=10_000)
            assert late is not None
            async with consumer(cluster, **options) as quick:
                await quick.getone(timeout_ms=1)
                message = await quick.getone(timeout_ms=5_000)
                assert message is not None
                assert message.delivery_count >= 2
                late.ack()
                with pytest.raises(InvalidRecordState, match="has run out"):
                    await slow.commit()
                assert failures[0][:3] == (TopicPartition("jobs", 0), 0, 1)
                message.ack()
                await quick.commit()

    run(tmp_path, story)


def test_locks_are_renewed_and_end_with_the_connection(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a"])
        slow = consumer(cluster, lock="1s")
        await slow.start()
        held = await slow.getone(timeout_ms=10_000)
        assert held is not None
        async with consumer(cluster, lock="1s") as other:
            assert await other.getone(timeout_ms=2_500) is None, "the lock was renewed"
            for connection in list(slow._engine.cluster._pool._open.values()):  # type: ignore[union-attr]
                connection.abort("the worker is killed")
            slow._engine.abandon()
            message = await other.getone(timeout_ms=5_000)
            assert message is not None
            message.ack()
            await other.commit()
        await slow.stop()

    run(tmp_path, story)


def test_acknowledged_records_stay_so_when_the_leader_is_replaced(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"%d" % number for number in range(100)])
        acknowledged: set[bytes] = set()
        rejected: set[bytes] = set()
        seen: Counter[bytes] = Counter()
        async with consumer(cluster, dead_letter_topic="dlq", max_poll_records=10) as worker:

            async def work(until: int) -> None:
                while len(acknowledged) + len(rejected) < until:
                    batch = await worker.getmany(timeout_ms=10_000, max_records=10)
                    assert batch, "work goes on"
                    for message in batch:
                        seen[message.value] += 1
                        assert message.value not in acknowledged | rejected
                        message.reject("odd") if int(message.value) % 10 == 9 else message.ack()
                    try:
                        await worker.commit()
                    except InvalidRecordState:
                        continue
                    for message in batch:
                        (rejected if int(message.value) % 10 == 9 else acknowledged).add(message.value)

            await work(40)
            leader = cluster.running().image.topics["jobs"].partitions[0].leader
            await cluster.stop_replica("jobs", 0, leader)
            await work(100)
        assert len(acknowledged) == 90
        letters = await read_all(cluster, "dlq", 10)
        assert Counter(letter.value for letter in letters) == Counter(rejected)

    run(tmp_path, story)


def test_what_is_stored_survives_the_keeper_of_states(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a", b"b", b"c"])
        async with consumer(cluster, max_poll_records=1) as worker:
            first = await worker.getone(timeout_ms=10_000)
            assert first is not None
            first.ack()
            await worker.commit()
            leader = cluster.running().image.topics["__share_state"].partitions[0].leader
            await cluster.stop_replica("__share_state", 0, leader)
            second = await worker.getone(timeout_ms=10_000)
            assert second is not None
            second.ack()
            await worker.commit()
        leader = cluster.running().image.topics["jobs"].partitions[0].leader
        await cluster.stop_replica("jobs", 0, leader)
        async with consumer(cluster) as worker:
            assert [message.value for message in await worker.getmany(timeout_ms=10_000)] == [b"c"]

    run(tmp_path, story)


def test_other_settings_and_names_of_consumer_groups_are_refused(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"a"])
        async with consumer(cluster, order="key") as worker:
            assert await worker.getone(timeout_ms=10_000) is not None
            async with consumer(cluster) as other:
                with pytest.raises(InconsistentGroupProtocol, match=r"queue\.order"):
                    await other.getone(timeout_ms=10_000)
        async with AsyncConsumer(
            "jobs", group_id="readers", auto_offset_reset="earliest", **cluster.clients()
        ) as reader:
            await reader.getone()
            async with consumer(cluster, group_id="readers") as worker:
                await eventually(lambda: worker._engine._error is not None, what="the group is refused")
                with pytest.raises(InconsistentGroupProtocol, match="consumer group"):
                    await worker.getone(timeout_ms=1)

    run(tmp_path, story)


def test_there_may_be_more_workers_than_partitions(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [], partitions=2)
        workers = [consumer(cluster, max_poll_records=1) for _ in range(5)]
        for worker in workers:
            await worker.start()
        memberships = [worker._engine._membership for worker in workers]

        def all_joined() -> bool:
            generations = {membership.generation for membership in memberships if membership is not None}
            return len(generations) == 1 and all(len(worker._engine._sources) == 1 for worker in workers)

        await eventually(all_joined, what="five members share two partitions")
        await eventually(lambda: not any(worker._engine._retiring for worker in workers), what="the others are left")
        await send(cluster, "jobs", [b"%d" % number for number in range(60)], keys=60)
        held = await asyncio.gather(*(worker.getone(timeout_ms=10_000) for worker in workers))
        assert len({message.value for message in held if message is not None}) == 5
        for worker in workers:
            await worker.stop()

    run(tmp_path, story)


def test_a_handler_may_reject(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"bad"])

        def handler(message: QueueMessage) -> None:
            raise Reject("poison")

        async with consumer(cluster, dead_letter_topic="dlq", consumer_timeout_ms=3_000) as worker:
            await worker.run(handler, concurrency=2)
        assert dict((await read_all(cluster, "dlq", 1))[0].headers)["__dlq.errors.message"] == b"poison"

    run(tmp_path, story)
