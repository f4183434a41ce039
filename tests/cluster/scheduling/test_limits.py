"""Delayed records at the limits of size, of targets that changed, and with what a foreign client may write."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from raylog.actors.roles import late
from raylog.actors.transport import dial
from raylog.base.errors import DelayTooLong, HalfMessageDecided, InvalidRecord, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.half_messages.checking import UndecidedHalf
from raylog.client.half_messages.producer import AsyncHalfMessageProducer
from raylog.client.producer.producer import AsyncProducer
from raylog.core.scheduling.envelope import HALF_HEADER, SCHEDULED_TOPIC, Envelope
from raylog.core.scheduling.keys import HELD_MS
from raylog.protocol.scheduling import SCHEDULE, ScheduleRequest
from raylog.storage.batch.header import MAGIC_COLUMNS, BatchMeta, header_before
from raylog.storage.batch.records import encode_batch
from raylog.storage.log import producer_state
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, reported
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)
ONE_COPY = {"offsets.topic.replication.factor": "1", "default.replication.factor": "1"}


def run(root: Path, story: Any) -> None:
    asyncio.run(reported(story, LocalCluster(root, 1, ONE_COPY)))


def in_ms(ms: int) -> int:
    return int(time.time() * 1000) + ms


async def read(cluster: LocalCluster, topic: str, count: int, within_s: float = 30.0) -> list[Any]:
    found: list[Any] = []
    async with AsyncConsumer(auto_offset_reset="earliest", **cluster.clients()) as reader:
        reader.assign([TopicPartition(topic, 0)])
        until = time.monotonic() + within_s
        while time.monotonic() < until and len(found) < count:
            for records in (await reader.getmany(timeout_ms=200)).values():
                found += records
    return found


async def schedule_raw(cluster: LocalCluster, batch: bytes) -> None:
    """Send a batch as a foreign client does."""
    leader = cluster.replica(SCHEDULED_TOPIC, 0, 1)
    connection = await dial(*leader.endpoint, secret=SECRET, timeout_s=5)
    try:
        await connection.call(
            SCHEDULE.name, ScheduleRequest(leader.spec.topic_id, 0, -1, -1, 5_000), batch, timeout_s=10
        )
    finally:
        connection.close("sent")


def test_why_records_wait_is_in_the_log_and_they_come_when_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The target's partition has room for no lasting producer: an error that passes, and lasts."""
    monkeypatch.setattr(late, "LATE_MS", 300)
    monkeypatch.setattr(producer_state, "LASTING_MAX", 0)

    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin, AsyncProducer(**cluster.clients()) as producer:
            await admin.create_topic("full", 1, 1)
            await (await producer.send("full", b"v", delay="10ms"))
            await eventually(lambda: "lasting producers" in caplog.text, what="the log says why it waits")
            monkeypatch.setattr(producer_state, "LASTING_MAX", 10)
            assert [record.value for record in await read(cluster, "full", 1)] == [b"v"]
            assert caplog.text.count("lasting producers") == 1, "once a minute"

    run(tmp_path, story)


def test_what_is_due_together_comes_in_order_below_a_small_limit(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin, AsyncProducer(**cluster.clients()) as producer:
            await admin.create_topic("small", 1, 1, config={"max.message.bytes": 20_000})
            due = in_ms(1_500)
            futures = [
                await producer.send("small", b"%04d" % number + b"x" * 1_000, deliver_at=due, partition=0)
                for number in range(300)
            ]
            large = await producer.send("small", b"large" + b"x" * 30_000, deliver_at=due, partition=0)
            await asyncio.gather(*futures, large)
            got = [int(record.value[:4]) for record in await read(cluster, "small", 300)]
            assert got == list(range(300))
            (dead,) = await read(cluster, "__undeliverable", 1)
            assert dead.value.startswith(b"large")
            assert any(b"max.message.bytes" in (value or b"") for _, value in dead.headers), "it says why"

    run(tmp_path, story)


def test_a_topic_that_was_created_again_gets_what_is_sent_to_it(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin, AsyncProducer(**cluster.clients()) as producer:
            await admin.create_topic("t", 1, 1)
            await (await producer.send("t", b"old", delay=10))
            assert [record.value for record in await read(cluster, "t", 1)] == [b"old"]
            await admin.delete_topic("t")
            await admin.create_topic("t", 1, 1)
            with contextlib.suppress(InvalidRecord):  # until it is refused: its sender has the old id
                for _ in range(50):
                    await (await producer.send("t", b"first", delay=10))
                    if await read(cluster, "t", 1, within_s=0.1):
                        break
            await (await producer.send("t", b"second", delay=10))
            async with AsyncProducer(**cluster.clients()) as another:
                await (await another.send("t", b"third", delay=10))
            got = [record.value for record in await read(cluster, "t", 2)]
            assert [value for value in got if value != b"first"] == [b"second", b"third"]

    run(tmp_path, story)


def test_no_delay_leads_to_a_topic_that_its_sender_may_not_write(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin, AsyncProducer(**cluster.clients()) as producer:
            await admin.create_topic("t", 1, 1)
            await admin.create_topic("secret", 1, 1)
            with pytest.raises(RaylogError):
                await (await producer.send("__consumer_offsets", b"v", key=b"k", delay=10))
            ids = {name: (await admin.describe_topic(name)).topic_id for name in ("t", "secret")}
            foreign = Envelope("secret", ids["secret"], 0, 0).header()
            with pytest.raises(InvalidRecord, match="own"):
                await (await producer.send("t", b"v", headers=[foreign], delay=10))
            await (await producer.send("t", b"warm", delay=10))
            meta = BatchMeta(5_000_000, 0, 0)
            internal = Envelope("__consumer_offsets", "i", 0, 0).header()
            with pytest.raises(InvalidRecord):
                await schedule_raw(cluster, encode_batch([b"k"], [b"v"], [in_ms(10)], [[internal]], meta))
            both = [foreign, Envelope("t", ids["t"], 0, 0).header()]
            await schedule_raw(cluster, encode_batch([b"k"], [b"v"], [in_ms(10)], [both], meta))
            assert {record.value for record in await read(cluster, "t", 2)} == {b"warm", b"v"}
            assert await read(cluster, "secret", 1, within_s=0.5) == []

    run(tmp_path, story)


def test_a_batch_that_does_not_open_stops_no_delay(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin, AsyncProducer(**cluster.clients()) as producer:
            await admin.create_topic("t", 1, 1)
            await (await producer.send("t", b"before", delay=10))
            topic_id = (await admin.describe_topic("t")).topic_id
            envelope = Envelope("t", topic_id, 0, 0).header()
            now, meta = in_ms(10), BatchMeta(5_000_000, 0, 0)
            body = msgspec.msgpack.encode([None, [5], [7], [[envelope]]])
            head = header_before(
                body,
                magic=MAGIC_COLUMNS,
                count=1,
                first_timestamp=now,
                max_timestamp=now,
                compression=0,
                meta=meta,
            )
            half = (HALF_HEADER, b"0:" + b"9" * 5_000 + b":g:x")
            for bad in (head + body, encode_batch([b"k"], [b"v"], [HELD_MS + now], [[envelope, half]], meta)):
                with pytest.raises(InvalidRecord):
                    await schedule_raw(cluster, bad)
            role: Any = cluster.replica(SCHEDULED_TOPIC, 0, 1)._roles._roles[0]
            # As an earlier release stored it, without a look.
            await role.append(head + body, 1)
            await (await producer.send("t", b"behind", delay=10))
            assert [record.value for record in await read(cluster, "t", 2)] == [b"before", b"behind"]
            assert role.figures()["unreadable"] == 1

    run(tmp_path, story)


def test_a_foreign_row_ends_no_coordinator(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.create_topic("t", 1, 1)
            async with AsyncConsumer(group_id="g", **cluster.clients()) as consumer:
                consumer.assign([TopicPartition("t", 0)])
                await consumer.commit({TopicPartition("t", 0): 0})
            (index,) = [each.spec.index for each in cluster.coordinators.values() if each.spec.kind == "group"]
            replica = cluster.replica("__consumer_offsets", index, 1)
            host = replica._roles._new_host(0)
            host.leader_epoch = -1
            await host.produce(encode_batch([b"k"], [b"v"], [in_ms(0)]))
            await cluster.restart_coordinator("group", index)
            described = await admin.describe_group("g")
            assert described.group_id == "g"

    run(tmp_path, story)


def test_a_decided_txid_is_refused_and_a_checker_may_block(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.create_topic("t", 1, 1)
            never = threading.Event()

            def checker(_: UndecidedHalf) -> None:
                never.wait()

            producer = AsyncHalfMessageProducer("g", checker, check_after=10, **cluster.clients())
            await producer.start()
            half = await producer.prepare("t", b"created", txid="order-42")
            await half.commit()
            with pytest.raises(HalfMessageDecided, match="COMMITTED already"):
                await producer.prepare("t", b"paid", txid="order-42")
            await producer.prepare("t", b"held", txid="order-43")
            await eventually(lambda: any(each.name == "half-checker" for each in threading.enumerate()))
            assert all(each.daemon for each in threading.enumerate() if each.name == "half-checker")
            await producer.stop()
            (held,) = await admin.list_half_messages("g")
            assert (held.txid, held.checks) == ("order-43", 0), "no answer is no check"
            assert [record.value for record in await read(cluster, "t", 1)] == [b"created"]

    run(tmp_path, story)


def test_moves_keep_to_the_topics_limit_and_lists_show_what_is_parked(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin, AsyncProducer(**cluster.clients()) as producer:
            await admin.create_topic("t", 1, 1, config={"delay.max.ms": 60_000})
            sent = await (await producer.send("t", b"v", delay=30_000))
            with pytest.raises(DelayTooLong):
                await admin.reschedule(sent.schedule, delay="1h")
            role: Any = cluster.replica(SCHEDULED_TOPIC, 0, 1)._roles._roles[0]
            role.deliveries.deliver = AsyncMock()  # the target takes nothing
            for _ in range(7):
                await (await producer.send("t", b"due", delay=10))
            await eventually(lambda: role.figures()["parked"] > 0 and role.figures()["waiting"] == 1)
            assert len(await admin.list_scheduled("t")) == 1 + role.figures()["parked"]

    run(tmp_path, story)
