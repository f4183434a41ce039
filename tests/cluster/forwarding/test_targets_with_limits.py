"""Expired records and redrives where targets do not take everything: only what they refuse goes elsewhere."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.roles import late
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.core.dead_letters import Cause, Reason, cause_of, dead_headers
from raylog.storage.batch.compression import ZSTD, compress
from raylog.storage.batch.header import MAGIC_COLUMNS
from raylog.storage.batch.key_hash import partition_for_key
from raylog.storage.batch.records import assemble_batch
from raylog.storage.log import producer_state
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.cluster.unopened import stored_unopened
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

SINGLE = {"offsets.topic.replication.factor": "1", "default.replication.factor": "1"}
HOUR_MS = 3_600_000


def run(root: Path, story: Any) -> None:
    in_cluster(brokers=1, config=SINGLE)(story)(root)


async def create(cluster: LocalCluster, topic: str, partitions: int = 1, **config: str) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        named = {name.replace("_", "."): value for name, value in config.items()}
        await admin.create_topic(topic, partitions, 1, config=named)


async def read(cluster: LocalCluster, topic: str, count: int, partitions: int = 1) -> list[Any]:
    """So many records of a topic, which may have to be created yet."""
    await eventually(lambda: topic in cluster.running().image.topics, what=f"{topic} is there", timeout_s=30)
    found: list[Any] = []
    async with AsyncConsumer(auto_offset_reset="earliest", **cluster.clients()) as reader:
        reader.assign([TopicPartition(topic, number) for number in range(partitions)])
        async with asyncio.timeout(30):
            while len(found) < count:
                for records in (await reader.getmany(timeout_ms=500)).values():
                    found += records
    return found


def dead(letter: Any) -> Cause:
    cause = cause_of(letter.headers)
    assert cause is not None
    return cause


def test_a_small_limit_takes_each_record_that_fits_it(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "late", max_message_bytes="50000")
        await create(cluster, "soon", ttl_ms="500", dead_letter_topic="late")
        values = [b"%d" % number * (60_000 if number == 40 else 400) for number in range(10, 110)]
        async with AsyncProducer(linger_ms=200, **cluster.clients()) as producer:
            await asyncio.gather(*[await producer.send("soon", value) for value in values])
        letters = await read(cluster, "late", 99)
        assert [letter.value for letter in letters] == [value for value in values if len(value) < 50_000]
        (large,) = await read(cluster, "__undeliverable", 1)
        assert large.value == values[30]

    run(tmp_path, story)


def test_why_dead_letters_wait_is_in_the_log_and_they_come_when_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The target's partition has room for no lasting producer: an error that passes, and lasts."""
    monkeypatch.setattr(late, "LATE_MS", 300)
    monkeypatch.setattr(producer_state, "LASTING_MAX", 0)

    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "full")
        await create(cluster, "soon", ttl_ms="100", dead_letter_topic="full")
        async with AsyncProducer(**cluster.clients()) as producer:
            await (await producer.send("soon", b"v"))
        await eventually(lambda: "lasting producers" in caplog.text, what="the log says why it waits")
        monkeypatch.setattr(producer_state, "LASTING_MAX", 10)
        assert [record.value for record in await read(cluster, "full", 1)] == [b"v"]
        assert caplog.text.count("lasting producers") == 1, "once a minute"

    run(tmp_path, story)


def test_one_record_that_is_refused_takes_no_other_with_it(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "late", cleanup_policy="compact")
        await create(cluster, "soon", ttl_ms="500", dead_letter_topic="late")
        async with AsyncProducer(linger_ms=200, **cluster.clients()) as producer:
            keys = [None if number == 50 else b"k%d" % number for number in range(100)]
            await asyncio.gather(*[await producer.send("soon", b"v", key=key) for key in keys])
        assert [letter.key for letter in await read(cluster, "late", 99)] == [key for key in keys if key]
        (refused,) = await read(cluster, "__undeliverable", 1)
        assert dead(refused).offset == 50

    run(tmp_path, story)


def test_a_time_to_live_of_many_years_condemns_nothing(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "late")
        await create(cluster, "soon", dead_letter_topic="late")
        async with AsyncProducer(linger_ms=200, **cluster.clients()) as producer:
            ttls = ["4000d" if number == 5 else "9000000d" if number == 6 else "500ms" for number in range(10)]
            await asyncio.gather(*[await producer.send("soon", b"%d" % at, ttl=ttl) for at, ttl in enumerate(ttls)])
        letters = await read(cluster, "late", 8)
        assert sorted(letter.value for letter in letters) == [b"%d" % at for at in range(10) if at not in (5, 6)]
        assert "__undeliverable" not in cluster.running().image.topics

    run(tmp_path, story)


def test_a_clock_that_is_ahead_holds_nothing_up(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "late")
        await create(cluster, "soon", ttl_ms="1000", dead_letter_topic="late")
        async with AsyncProducer(**cluster.clients()) as producer:
            ahead_ms = int(time.time() * 1000) + HOUR_MS * 5 // 6
            await (await producer.send("soon", b"ahead", timestamp_ms=ahead_ms))
            await asyncio.gather(*[await producer.send("soon", b"%d" % number) for number in range(10)])
        letters = await read(cluster, "late", 11)
        assert [letter.value for letter in letters] == [b"ahead", *(b"%d" % number for number in range(10))]
        assert dead(letters[0]).timestamp_ms == ahead_ms

    run(tmp_path, story)


def test_a_batch_that_does_not_open_is_named_and_passed(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "late")
        await create(cluster, "soon", ttl_ms="500", dead_letter_topic="late")
        await talk.produce("soon", b"before")
        head, endpoint = await talk.leader("soon")
        stamps = [int(time.time() * 1000)] * 3
        batch = assemble_batch(MAGIC_COLUMNS, compress(ZSTD, b"no msgpack"), stamps, compression=ZSTD)
        with stored_unopened():
            await talk.call(endpoint, "produce", [*head, -1, 5_000], batch)
        await talk.produce("soon", b"behind")
        assert [letter.value for letter in await read(cluster, "late", 2)] == [b"before", b"behind"]
        (letter,) = await read(cluster, "__undeliverable", 1)
        assert (dead(letter).topic, dead(letter).offset, letter.value) == ("soon", 1, None)
        assert "offsets 1 to 3 cannot be opened" in dead(letter).message
        assert not cluster.fatal

    run(tmp_path, story)


async def redriven(admin: AsyncAdmin, topic: str, to: str | None) -> int:
    """Send what is in a topic on; returns how many records that were."""
    number = await admin.redrive(topic, to) if to else await admin.redrive(topic)
    row = await admin.describe_redrive(number)
    async with asyncio.timeout(30):
        while not row.has_ended:
            await asyncio.sleep(0.05)
            row = await admin.describe_redrive(number)
    return row.sent


def test_a_redrive_to_a_topic_spreads_records_as_a_producer_does(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs", partitions=6)
        await create(cluster, "dead")
        async with AsyncProducer(**cluster.clients()) as producer:
            await asyncio.gather(*[await producer.send("dead", b"v", key=b"k%d" % number) for number in range(60)])
        async with AsyncAdmin(**cluster.clients()) as admin:
            assert await redriven(admin, "dead", "jobs") == 60
        found = await read(cluster, "jobs", 60, partitions=6)
        assert {record.key: record.partition for record in found} == {
            b"k%d" % number: partition_for_key(b"k%d" % number, 6) for number in range(60)
        }

    run(tmp_path, story)


def test_a_redrive_that_sends_nothing_leaves_all_to_the_next_one(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs")
        await create(cluster, "dead")
        await talk.produce("dead", b"0", b"1", b"2")  # without a cause, so without an origin
        async with AsyncAdmin(**cluster.clients()) as admin:
            assert await redriven(admin, "dead", None) == 0
            assert await redriven(admin, "dead", "jobs") == 3
            assert await redriven(admin, "dead", "jobs") == 0

    run(tmp_path, story)


def test_a_redrive_that_sends_some_leaves_the_others_to_the_next_one(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(cluster, "jobs")
        await create(cluster, "other")
        await create(cluster, "dead")
        cause = Cause(reason=Reason.REJECTED, topic="jobs", partition=0, offset=0, message="", group="", timestamp_ms=0)
        async with AsyncProducer(**cluster.clients()) as producer:
            for number in range(10):  # every third one does not say where it was
                headers = [] if number % 3 == 0 else dead_headers((), cause)
                await (await producer.send("dead", b"%d" % number, headers=headers))
        async with AsyncAdmin(**cluster.clients()) as admin:
            assert await redriven(admin, "dead", None) == 6
            assert await redriven(admin, "dead", None) == 0
            async with AsyncProducer(**cluster.clients()) as producer:
                await (await producer.send("dead", b"10", headers=dead_headers((), cause)))
            assert await redriven(admin, "dead", "other") == 5
            assert await redriven(admin, "dead", "other") == 0
        assert [record.value for record in await read(cluster, "other", 5)] == [b"0", b"3", b"6", b"9", b"10"]

    run(tmp_path, story)
