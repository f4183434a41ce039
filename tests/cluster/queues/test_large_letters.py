"""Dead letters and late retries of large records: each arrives whole, or is held and says so; none is lost unseen."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import InvalidConfig
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.admin.queues import QueueDescription
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer, QueueMessage
from raylog.core.dead_letters import Cause, cause_of
from raylog.core.queues import events as ev
from raylog.storage.batch.compression import ZSTD, compress
from raylog.storage.batch.header import MAGIC_COLUMNS
from raylog.storage.batch.records import assemble_batch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.cluster.unopened import stored_unopened
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
SINGLE = {
    "group.initial.rebalance.delay.ms": "50",
    "offsets.topic.replication.factor": "1",
    "default.replication.factor": "1",
    "log.retention.check.interval.ms": "1000",
}


def run(root: Path, story: Any) -> None:
    in_cluster(brokers=1, config=SINGLE)(story)(root)


async def create(cluster: LocalCluster, topic: str, **config: str) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        named = {name.replace("_", "."): value for name, value in config.items()}
        await admin.create_topic(topic, 1, 1, config=named)


async def send(cluster: LocalCluster, topic: str, values: list[bytes], **options: Any) -> None:
    limits = {"max_request_size": 20 * MIB, "buffer_memory": 64 * MIB}
    async with AsyncProducer(**{**limits, **cluster.clients(), **options}) as producer:
        for value in values:
            await (await producer.send(topic, value, headers={"own": b"1"}))


def consumer(cluster: LocalCluster, topic: str = "jobs", **keywords: Any) -> AsyncQueueConsumer:
    options = {"group_id": "workers", "dead_letter_topic": "dead", **cluster.clients(), **keywords}
    return AsyncQueueConsumer(topic, **options)


async def taken(worker: AsyncQueueConsumer, count: int) -> list[QueueMessage]:
    found: list[QueueMessage] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await worker.getmany(timeout_ms=1_000)
    return found


async def reject_all(cluster: LocalCluster, count: int, **keywords: Any) -> None:
    async with consumer(cluster, **keywords) as worker:
        for message in await taken(worker, count):
            message.reject("bad")
        await worker.commit()


async def read(cluster: LocalCluster, topic: str, count: int, timeout_s: float = 40.0) -> list[Any]:
    """So many records of a topic, which may have to be created yet."""
    await eventually(lambda: topic in cluster.running().image.topics, what=f"{topic} is there", timeout_s=timeout_s)
    found: list[Any] = []
    async with AsyncConsumer(auto_offset_reset="earliest", **cluster.clients()) as reader:
        reader.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(timeout_s):
            while len(found) < count:
                for records in (await reader.getmany(timeout_ms=500)).values():
                    found += records
    return found


async def described(cluster: LocalCluster) -> QueueDescription:
    async with AsyncAdmin(**cluster.clients()) as admin:
        (row,) = await admin.describe_queue("workers", "jobs")
        return row


async def until(cluster: LocalCluster, holds: Any, what: str) -> QueueDescription:
    row = await described(cluster)
    async with asyncio.timeout(40):
        while not holds(row):
            await asyncio.sleep(0.05)
            row = await described(cluster)
    return row


def test_letters_that_are_large_together_all_arrive(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs")
        values = [b"%03d" % number + os.urandom(1_000_000) for number in range(105)]
        await send(cluster, "jobs", values)
        await reject_all(cluster, len(values), lock="60s")
        letters = await read(cluster, "dead", len(values))
        assert [letter.value[:3] for letter in letters] == [value[:3] for value in values]
        assert all(len(letter.value) == 1_000_003 for letter in letters)
        row = await until(cluster, lambda row: row.archiving == 0, "nothing is under way")
        assert row.counters["dead_letters"] == len(values)
        assert row.counters.get("dead_letters_without_body", 0) == 0

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("config", "options", "value"),
    [
        ({"max_message_bytes": str(10 * MIB)}, {}, os.urandom(3_000_000)),
        ({}, {}, os.urandom(1_048_300)),
        ({}, {"compression_type": "zstd"}, b"\0" * 3_000_000),
    ],
    ids=["above the default limit", "at the limit", "compressed"],
)
def test_what_its_topic_took_its_dead_letter_topic_takes(
    tmp_path: Path, config: dict[str, str], options: dict[str, Any], value: bytes
) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs", **config)
        await send(cluster, "jobs", [value] * 3, **options)
        await reject_all(cluster, 3)
        letters = await read(cluster, "dead", 3)
        assert [letter.value == value for letter in letters] == [True] * 3

    run(tmp_path, story)


def test_a_letter_above_the_limit_is_held_until_the_limit_is_raised(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs")
        await create(cluster, "dead", max_message_bytes="100000")
        values = [b"%d" % number * (200_000 if number in (1, 4) else 1_000) for number in range(8)]
        await send(cluster, "jobs", values)
        await reject_all(cluster, 8)
        assert len(await read(cluster, "dead", 6)) == 6
        row = await until(cluster, lambda row: row.held == 2, "two are held")
        assert (row.archiving, row.counters["dead_letters_too_large"]) == (2, 2)
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.alter_topic_config("dead", {"max.message.bytes": "300000"})
        letters = await read(cluster, "dead", 8)
        assert sorted(letter.value for letter in letters) == sorted(values)
        row = await until(cluster, lambda row: row.archiving == 0, "nothing is under way")
        assert (row.held, row.start) == (0, 8)

    run(tmp_path, story)


def test_its_body_is_dropped_if_that_is_configured(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs", errors_deadletterqueue_on_failure="drop")
        await create(cluster, "dead", max_message_bytes="100000")
        await send(cluster, "jobs", [b"small", b"x" * 200_000])
        await reject_all(cluster, 2)
        letters = await read(cluster, "dead", 2)
        assert [letter.value for letter in letters] == [b"small", None]
        cause = cause_of(letters[1].headers)
        assert cause is not None
        assert (cause.topic, cause.offset) == ("jobs", 1)
        assert cause.message == "bad; its body is too large for this topic"
        row = await until(cluster, lambda row: row.archiving == 0, "nothing is under way")
        assert row.counters["dead_letters_without_body"] == 1

    run(tmp_path, story)


def test_one_letter_that_is_refused_holds_up_no_other(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs")
        await create(cluster, "dead", cleanup_policy="compact")
        async with AsyncProducer(**cluster.clients()) as producer:
            for number in range(6):
                key = None if number == 2 else b"k%d" % number
                await (await producer.send("jobs", b"%d" % number, key=key))
        await reject_all(cluster, 6)
        assert [letter.value for letter in await read(cluster, "dead", 5)] == [b"0", b"1", b"3", b"4", b"5"]
        assert [letter.value for letter in await read(cluster, "__undeliverable", 1)] == [b"2"]
        row = await until(cluster, lambda row: row.start == 6, "the queue goes on")
        assert row.counters["dead_letters_undeliverable"] == 1

    run(tmp_path, story)


def test_a_letter_is_as_old_as_its_sending(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        began_ms = int(time.time() * 1000)
        stamp_ms = began_ms - 120_000
        await create(cluster, "jobs")
        await create(cluster, "dead", retention_ms="60000")
        async with AsyncProducer(**cluster.clients()) as producer:
            await (await producer.send("jobs", b"old", timestamp_ms=stamp_ms))
        await reject_all(cluster, 1)
        (letter,) = await read(cluster, "dead", 1)
        assert began_ms - 1_000 <= letter.timestamp_ms <= time.time() * 1000 + 1_000
        cause = cause_of(letter.headers)
        assert cause is not None
        assert cause.timestamp_ms == stamp_ms

    run(tmp_path, story)


def test_late_retries_that_are_large_together_are_all_kept(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs", queue_retry_max_ms="1000", max_message_bytes=str(3 * MIB))
        values = [b"%03d" % number + os.urandom(1_100_000) for number in range(105)]
        await send(cluster, "jobs", values)
        async with consumer(cluster, lock="60s") as worker:
            for message in await taken(worker, len(values)):
                message.retry("1h")
            await worker.commit()
        row = await until(cluster, lambda row: row.archiving == 0, "all copies are made")
        assert (row.start, row.counters["postponed"]) == (len(values), len(values))

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("config", "options", "value"),
    [
        ({"max_message_bytes": str(10 * MIB)}, {}, os.urandom(3_000_000)),
        ({}, {"compression_type": "zstd"}, b"\0" * 3_000_000),
    ],
    ids=["above the default limit", "compressed"],
)
def test_a_late_retry_of_a_large_record_comes_whole(
    tmp_path: Path, config: dict[str, str], options: dict[str, Any], value: bytes
) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs", queue_retry_max_ms="1000", **config)
        await send(cluster, "jobs", [value], **options)
        async with consumer(cluster) as worker:
            (message,) = await taken(worker, 1)
            message.retry("2s")
            await worker.commit()
            (again,) = await taken(worker, 1)
            assert (again.value == value, again.delivery_count) == (True, 2)
            again.ack()
            await worker.commit()

    run(tmp_path, story)


async def send_unreadable(talk: Talk, topic: str) -> int:
    """Append a batch with a right CRC whose body does not open, which no header shows; returns its offset."""
    head, endpoint = await talk.leader(topic)
    stamps = [int(time.time() * 1000)]
    batch = assemble_batch(MAGIC_COLUMNS, compress(ZSTD, b"no msgpack at all"), stamps, compression=ZSTD)
    with stored_unopened():
        return int((await talk.call(endpoint, "produce", [*head, -1, 5_000], batch)).args[0])


@pytest.mark.parametrize("kind", [ev.REJECT, ev.RETRY])
def test_a_body_that_does_not_open_ends_nothing(tmp_path: Path, kind: int) -> None:
    """It is a letter that says why, and the letters beside it go as ever."""

    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs", queue_retry_max_ms="1000", errors_deadletterqueue_topic_name="dead")
        await talk.produce("jobs", b"before")
        bad = await send_unreadable(talk, "jobs")
        await talk.produce("jobs", b"behind")
        head, endpoint = await talk.leader("jobs")
        member = [*head, "workers", "one"]
        await talk.call(endpoint, "queue_open", [*member, {}])
        for offset in range(3):
            await talk.call(endpoint, "queue_fetch", [*member, 1, 1, 10_000])
            verdict = [offset, offset + 1, kind if offset == bad else ev.REJECT, 1, 60_000, "bad"]
            await talk.call(endpoint, "queue_acknowledge", [*member, [verdict]])
        letters = {dead(letter).offset: (letter, dead(letter)) for letter in await read(cluster, "dead", 3)}
        assert [letters[offset][0].value for offset in range(3)] == [b"before", None, b"behind"]
        assert letters[bad][1].message.endswith("its body cannot be opened")
        row = await until(cluster, lambda row: row.start == 3, "the queue goes on")
        assert row.counters["dead_letters_without_body"] == 1
        assert not cluster.fatal

    run(tmp_path, story)


def test_a_letter_whose_body_was_deleted_is_counted(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs")
        await create(cluster, "dead", max_message_bytes="100000")
        await send(cluster, "jobs", [b"x" * 600_000] * 8)
        async with consumer(cluster) as worker:
            for message in await taken(worker, 8):
                message.reject("bad")
            await worker.commit()
            await until(cluster, lambda row: row.held == 8, "no letter fits")
            async with AsyncAdmin(**cluster.clients()) as admin:
                await admin.delete_records({TopicPartition("jobs", 0): 8})
                await admin.alter_topic_config("dead", {"max.message.bytes": "1000000"})
        letters = await read(cluster, "dead", 8)
        lost = [letter for letter in letters if letter.value is None]
        assert lost, "the leader kept only what it had read last"
        assert {dead(letter).message for letter in lost} == {"bad; its body was deleted by retention"}
        row = await until(cluster, lambda row: row.archiving == 0, "nothing is under way")
        assert (row.counters["dead_letters"], row.counters["dead_letters_without_body"]) == (8, len(lost))

    run(tmp_path, story)


def dead(letter: Any) -> Cause:
    cause = cause_of(letter.headers)
    assert cause is not None
    return cause


def test_no_queue_works_on_a_topic_whose_records_expire_whatever_it_does(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs", ttl_ms="60000", dead_letter_topic="late")
        head, endpoint = await talk.leader("jobs")
        error = await refused(talk.call(endpoint, "queue_open", [*head, "workers", "one", {}]), InvalidConfig)
        assert "late" in str(error)
        async with consumer(cluster) as worker:
            with pytest.raises(InvalidConfig):
                await worker.getmany(timeout_ms=10_000)

    run(tmp_path, story)
