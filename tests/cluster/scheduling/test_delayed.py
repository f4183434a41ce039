"""Delayed records in a real Ray, with three brokers: when they come, what can be changed before, and killed leaders.

They run in file order, on the cluster that stays; each has a topic of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

import raylog
from raylog.base.errors import DelayDisabled, DelayTooLong, InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.admin.schedules import ScheduleOutcome
from raylog.client.producer.arrow_columns import ArrowColumns, header_type
from raylog.client.producer.scheduling import AsyncScheduledBatch, ScheduledBatch
from tests.cluster.ray_support import actor_names, call_actor, kill
from tests.unit.cli.support import Outcome
from tests.unit.cli.support import raylog as command
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SCHEDULE = "__scheduled"


def read(topic: str, count: int, timeout_s: float = 30.0, quiet_s: float = 0.5) -> list[tuple[float, raylog.Record]]:
    """The first records of a topic, each with the time when it was seen; more would show up within ``quiet_s``."""
    found: list[tuple[float, raylog.Record]] = []
    with raylog.Consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(2)])
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            limit_ms = 100 if len(found) < count else int(quiet_s * 1000)
            polled = consumer.poll(timeout_ms=limit_ms)
            found += [(time.time() * 1000, record) for records in polled.values() for record in records]
            if len(found) >= count and not polled:
                break
    return found


def has_another_leader(admin: raylog.Admin, than: int) -> bool:
    return admin.describe_topic(SCHEDULE).partitions[0].leader not in (-1, than)


def test_records_come_when_they_are_due(topic: str, producer: raylog.Producer) -> None:
    began_ms = time.time() * 1000
    late = producer.send(topic, b"late", key=b"k", delay="2s", headers={"a": b"1"}).result(20)
    soon = producer.send(topic, b"soon", key=b"k", deliver_at=datetime.now(UTC) + timedelta(seconds=1)).result(20)
    producer.send(topic, b"now", key=b"k").result(20)
    assert late.offset == soon.offset == -1
    assert late.schedule != soon.schedule
    found = read(topic, 3)
    assert [record.value for _, record in found] == [b"now", b"soon", b"late"]
    for (seen_ms, record), due in zip(found[1:], (soon, late), strict=True):
        assert record.timestamp_ms == due.timestamp_ms
        assert due.timestamp_ms <= seen_ms + 20, "not before it is due"
    assert late.timestamp_ms - began_ms >= 1_900
    assert found[2][1].headers == (("a", b"1"),)
    assert len({record.partition for _, record in found}) == 1, "the key decides"


def test_a_past_time_is_now(topic: str, producer: raylog.Producer) -> None:
    producer.send(topic, b"x", deliver_at=1_000).result(20)
    producer.send(topic, b"y", delay=-5, partition=1).result(20)
    assert {record.value for _, record in read(topic, 2)} == {b"x", b"y"}


def test_a_cancelled_record_never_comes(topic: str, admin: raylog.Admin, producer: raylog.Producer) -> None:
    kept = producer.send(topic, b"kept", delay=1_500).result(20)
    stopped = producer.send(topic, b"stopped", delay=1_000).result(20)
    assert admin.cancel_scheduled(stopped.schedule) is ScheduleOutcome.CANCELLED
    assert admin.cancel_scheduled(stopped.schedule) is ScheduleOutcome.ALREADY_CANCELLED
    assert [record.value for _, record in read(topic, 1)] == [b"kept"]
    assert admin.cancel_scheduled(kept.schedule) is ScheduleOutcome.ALREADY_DELIVERED
    partition, offset, due_ms = kept.schedule.split("-")
    assert admin.cancel_scheduled(f"{partition}-{offset}-{int(due_ms) + 1}") is ScheduleOutcome.NOT_FOUND
    with pytest.raises(InvalidRequest, match="raylog schedule list"):
        admin.cancel_scheduled("tomorrow")


def test_records_can_be_moved_listed_and_delivered_now(
    topic: str, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    first = producer.send(topic, b"first", key=b"a", delay="1h").result(20)
    second = producer.send(topic, b"second", key=b"b", delay="2h", partition=1).result(20)
    listed = admin.list_scheduled(topic)
    assert [row.handle for row in listed] == [first.schedule, second.schedule]
    assert [(row.key, row.partition, row.value_bytes) for row in listed] == [(b"a", None, 5), (b"b", 1, 6)]
    assert [row.handle for row in admin.list_scheduled(topic, before=first.timestamp_ms)] == [first.schedule]
    moved = admin.reschedule(second.schedule, delay="1h")
    assert moved.outcome is ScheduleOutcome.MOVED
    assert admin.deliver_now(first.schedule).outcome is ScheduleOutcome.MOVED
    assert [record.value for _, record in read(topic, 1)] == [b"first"]
    moved = admin.reschedule(moved.handle, delay="1s")
    assert moved.outcome is ScheduleOutcome.MOVED
    assert {record.value for _, record in read(topic, 2)} == {b"first", b"second"}
    assert admin.deliver_now(moved.handle).outcome is ScheduleOutcome.ALREADY_DELIVERED
    assert admin.reschedule(second.schedule, delay=1).outcome is ScheduleOutcome.ALREADY_CANCELLED


def test_wrong_delays_are_refused_with_the_way_out(topic: str, admin: raylog.Admin, producer: raylog.Producer) -> None:
    with pytest.raises(DelayTooLong, match=r"delay\.max\.ms"):
        producer.send(topic, b"x", delay="41d")
    with pytest.raises(ValueError, match="zone"):
        producer.send(topic, b"x", deliver_at=datetime(2030, 1, 1))
    with pytest.raises(ValueError, match="no delay"):
        producer.send(topic, b"x", delay="soon")
    with pytest.raises(ValueError, match="not both"):
        producer.send(topic, b"x", delay=1, deliver_at=1)
    stated: list[dict[str, Any]] = [{"delay": 1}, {"deliver_at": 1}]
    for when in stated:  # it would not be the timestamp of the delivered record
        with pytest.raises(ValueError, match="leave out timestamp_ms"):
            producer.send(topic, b"x", timestamp_ms=5, **when)
        with pytest.raises(ValueError, match="leave out timestamp_ms"):
            producer.send_batch(topic, [b"x"], timestamp_ms=[5], **when)
    with raylog.Producer(acks=1, enable_idempotence=False) as loose, pytest.raises(InvalidConfig, match="acks='all'"):
        loose.send(topic, b"x", delay=1)
    admin.alter_topic_config(topic, {"delay.enable": "false"})
    with raylog.Producer() as other, pytest.raises(DelayDisabled, match=r"delay\.enable"):
        other.send(topic, b"x", delay=1)


def test_batches_have_a_delay_for_all_or_for_each(topic: str, admin: raylog.Admin, producer: raylog.Producer) -> None:
    now_ms = int(time.time() * 1000)
    same = producer.send_batch(topic, [b"c", b"d"], [b"k", b"k"], delay="1500ms")
    each = producer.send_batch(topic, [b"b", b"a"], [b"k", b"k"], deliver_at=[now_ms + 1_000, now_ms + 500])
    stopped = producer.send_batch(topic, [b"x", b"y"], headers=[{"h": b"1"}, None], delay=[3_600_000, "2h"])
    assert isinstance(same, ScheduledBatch)
    assert isinstance(each, ScheduledBatch)
    assert isinstance(stopped, ScheduledBatch)
    assert len(same.schedules(20)) == len(each.schedules(20)) == 2
    for handle in stopped.schedules(20):
        assert admin.cancel_scheduled(handle) is ScheduleOutcome.CANCELLED
    assert [record.value for _, record in read(topic, 4)] == [b"a", b"b", b"c", b"d"]
    with pytest.raises(ValueError, match="2 values, but 1 delays"):
        producer.send_batch(topic, [b"x", b"y"], delay=["1s"])
    with pytest.raises(DelayTooLong):
        producer.send_batch(topic, [b"x", b"y"], delay=["1s", "41d"])


def test_a_topic_may_delay_what_has_no_delay_of_its_own(
    topic: str, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.alter_topic_config(topic, {"delay.default.ms": "1500"})
    with raylog.Producer(linger_ms=0) as other:  # it learns the setting with the topic
        began_ms = time.time() * 1000
        late = other.send(topic, b"late", b"k").result(20)
        batch = other.send_batch(topic, [b"batch"], [b"k"])
        now = other.send(topic, b"now", b"k", delay=0).result(20)
        assert late.schedule
        assert now.schedule
        assert isinstance(batch, ScheduledBatch)
        found = read(topic, 3)
    assert [record.value for _, record in found] == [b"now", b"late", b"batch"]
    assert found[1][0] - began_ms >= 1_450

    async def twin() -> None:
        async with raylog.AsyncProducer() as again:
            stored = await again.send_and_wait(topic, b"twin", b"k")
            assert stored.schedule
            sent = await again.send_batch(topic, [b"more"], [b"k"])
            assert isinstance(sent, AsyncScheduledBatch)
            assert all(await sent.schedules())

    asyncio.run(twin())
    assert [record.value for _, record in read(topic, 5)][3:] == [b"twin", b"more"]


def test_a_topic_may_delay_whole_tables(topic: str, admin: raylog.Admin) -> None:
    admin.alter_topic_config(topic, {"delay.default.ms": "1000"})
    headers = pa.array([[{"key": "a", "value": b"1"}], None], header_type())
    columns = ArrowColumns(pa.array([b"x", b"y"]), pa.array([b"k", None]), headers)
    with raylog.Producer() as other:
        began_ms = time.time() * 1000
        sent = other.send_arrow(topic, columns, pa.array([None, 1], pa.int32()))
        assert isinstance(sent, ScheduledBatch)
        assert all(sent.schedules(20))
    found = {record.value: (seen_ms, record) for seen_ms, record in read(topic, 2)}
    assert (found[b"x"][1].headers, found[b"y"][1].partition) == ((("a", b"1"),), 1)
    assert min(seen_ms for seen_ms, _ in found.values()) - began_ms >= 950


def test_a_later_record_replaces_the_one_with_its_id(
    topic: str, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    first = producer.send(topic, b"first", key=b"k", delay="1h", schedule_id="close-42").result(20)
    other = producer.send(topic, b"other", delay=300, schedule_id="close-43").result(20)
    second = producer.send(topic, b"second", key=b"k", delay="2h", schedule_id="close-42").result(20)
    assert (first.replaced, other.replaced, second.replaced) == (False, False, True)
    found = admin.find_scheduled(topic, "close-42")
    assert found is not None
    assert (found.handle, found.schedule_id, found.value_bytes) == (second.schedule, "close-42", 6)
    assert [row.schedule_id for row in admin.list_scheduled(topic)][-1] == "close-42"
    assert admin.cancel_scheduled(first.schedule) is ScheduleOutcome.ALREADY_CANCELLED
    moved = admin.reschedule(topic=topic, schedule_id="close-42", delay="3h")
    assert (moved.outcome, moved.handle != second.schedule) == (ScheduleOutcome.MOVED, True)
    assert producer.send(topic, b"third", delay="1h", schedule_id="close-42").result(20).replaced, "it keeps its id"
    assert admin.deliver_now(topic=topic, schedule_id="close-42").outcome is ScheduleOutcome.MOVED
    assert {record.value for _, record in read(topic, 2)} == {b"other", b"third"}
    assert admin.cancel_scheduled(topic=topic, schedule_id="close-43") is ScheduleOutcome.ALREADY_DELIVERED
    again = producer.send(topic, b"again", delay="1h", schedule_id="close-42").result(20)
    assert again.replaced is False, "what it would have replaced is delivered"
    assert admin.cancel_scheduled(topic=topic, schedule_id="close-42") is ScheduleOutcome.CANCELLED
    assert admin.cancel_scheduled(topic=topic, schedule_id="close-42") is ScheduleOutcome.ALREADY_CANCELLED
    assert admin.cancel_scheduled(topic=topic, schedule_id="never") is ScheduleOutcome.NOT_FOUND
    assert admin.find_scheduled(topic, "close-42") is None


def test_batches_and_asyncio_have_schedule_ids(topic: str, producer: raylog.Producer) -> None:
    batch = producer.send_batch(topic, [b"a", b"b", b"c"], delay="1h", schedule_id=["1", None, "1"])
    assert isinstance(batch, ScheduledBatch)
    assert batch.replaced(20) == [False, None, True]

    async def twin() -> None:
        async with raylog.AsyncProducer() as again:
            stored = await again.send_and_wait(topic, b"d", delay=100, schedule_id="1")
            assert stored.replaced
            sent = await again.send_batch(topic, [b"e"], delay=["1h"], schedule_id=["1"])
            assert isinstance(sent, AsyncScheduledBatch)
            assert len(await sent.replaced()) == 1

    asyncio.run(twin())
    assert [record.value for _, record in read(topic, 0, quiet_s=1.0)] in ([], [b"d"]), "replaced in time, or not"


def test_wrong_schedule_ids_are_refused(topic: str, admin: raylog.Admin, producer: raylog.Producer) -> None:
    with pytest.raises(ValueError, match="give delay or deliver_at"):
        producer.send(topic, b"x", schedule_id="a").result(20)
    with pytest.raises(ValueError, match="1 to 255 bytes"):
        producer.send(topic, b"x", delay="1h", schedule_id="")
    with pytest.raises(ValueError, match="256 bytes"):
        producer.send(topic, b"x", delay="1h", schedule_id="a" * 256)
    with pytest.raises(ValueError, match="cannot be printed"):
        producer.send(topic, b"x", delay="1h", schedule_id="a\nb")
    with pytest.raises(TypeError, match="not int"):
        producer.send(topic, b"x", delay="1h", schedule_id=42)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one id names one record"):
        producer.send_batch(topic, [b"x", b"y"], delay="1h", schedule_id="a")
    with pytest.raises(ValueError, match="give one of both"):
        admin.cancel_scheduled(topic=topic)
    with pytest.raises(UnknownTopicOrPartition):
        admin.cancel_scheduled(topic="no_such_topic", schedule_id="a")


def test_an_id_lasts_over_a_killed_leader(topic: str, admin: raylog.Admin, producer: raylog.Producer) -> None:
    for number in range(50):
        producer.send(topic, b"old %d" % number, delay="1h", schedule_id=f"id {number}")
    producer.flush(30)
    leader = admin.describe_topic(SCHEDULE).partitions[0].leader
    (name,) = [each for each in actor_names() if each.startswith(f"replica:{SCHEDULE}-0:broker-{leader}:")]
    kill(call_actor(name, "status")["pid"])
    sent = [producer.send(topic, b"%d" % number, delay=10, schedule_id=f"id {number}") for number in range(50)]
    assert all(future.result(60).replaced for future in sent)
    assert {int(record.value) for _, record in read(topic, 50)} == set(range(50))


def test_a_killed_leader_delays_nothing_for_long_and_doubles_nothing(
    topic: str, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    """Records are due before, while and after the leader of the schedule is killed, twice."""
    count = 400
    sent = [producer.send(topic, b"%d" % number, key=b"k", delay=200 + 10 * number) for number in range(count)]
    for future in sent:
        future.result(30)
    for _ in range(2):
        leader = admin.describe_topic(SCHEDULE).partitions[0].leader
        (name,) = [each for each in actor_names() if each.startswith(f"replica:{SCHEDULE}-0:broker-{leader}:")]
        kill(call_actor(name, "status")["pid"])
        wait_for(partial(has_another_leader, admin, leader), "another leads")
    found = read(topic, count, 60)
    assert [int(record.value) for _, record in found] == list(range(count))


def test_a_killed_target_gets_its_records_once(topic: str, admin: raylog.Admin, producer: raylog.Producer) -> None:
    count = 300
    producer.send(topic, b"0", partition=0).result(30)  # it is awake from here on
    for number in range(1, count):
        producer.send(topic, b"%d" % number, partition=0, delay=100 + 10 * number)
    producer.flush(30)
    leader = admin.describe_topic(topic).partitions[0].leader
    (name,) = [each for each in actor_names() if each.startswith(f"replica:{topic}-0:broker-{leader}:")]
    kill(call_actor(name, "status")["pid"])
    assert [int(record.value) for _, record in read(topic, count, 60)] == list(range(count))


def test_records_of_a_deleted_topic_are_dead_letters(admin: raylog.Admin, producer: raylog.Producer) -> None:
    admin.create_topic("short_lived", partitions=1, replication_factor=3)
    producer.send("short_lived", b"orphan", delay=1_500).result(20)
    admin.delete_topic("short_lived")
    wait_for(lambda: "__undeliverable" in admin.list_topics(internal=True), "the topic is created")
    with raylog.Consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition("__undeliverable", 0)])
        found: list[raylog.Record] = []

        def is_there() -> bool:
            found.extend(chain(*consumer.poll(timeout_ms=200).values()))
            return any(record.value == b"orphan" for record in found)

        wait_for(is_there, "the dead letter is there")
    (headers,) = [dict(record.headers) for record in found if record.value == b"orphan"]
    assert headers["__dlq.errors.topic"] == b"short_lived"
    assert headers["raylog-dead-reason"] == b"undeliverable"


def test_the_description_counts(admin: raylog.Admin, topic: str, producer: raylog.Producer) -> None:
    producer.send(topic, b"far", delay="10d").result(20)
    (found,) = admin.describe_scheduled(topic)
    assert found.waiting >= 1
    assert abs(found.clock_ms - time.time() * 1000) < 2_000
    assert found.next_due_ms is not None


def test_metrics_and_commands_show_what_waits(
    three_brokers: raylog.Cluster, topic: str, producer: raylog.Producer
) -> None:
    handle = producer.send(topic, b"far", key=b"k", delay="10d").result(20).schedule

    def run(*arguments: str, stdin: str = "") -> Outcome:
        where = ("--bootstrap", three_brokers.bootstrap())
        return command(*arguments, *where, stdin=stdin, RAYLOG_SECRET=three_brokers.secret())

    assert handle in run("schedule", "list", "--topic", topic).out
    assert "wait, the next is due" in run("schedule", "describe").out
    assert run("schedule", "move", handle, "--delay", "soon").code == 1
    assert run("schedule", "move", handle, "--delay", "20d").code == 0
    (row,) = json.loads(run("schedule", "list", "--topic", topic, "--json").out)
    assert run("schedule", "cancel", row["handle"]).code == 0
    refused = run("schedule", "cancel", row["handle"])
    assert (refused.code, "cancelled or moved before" in refused.err) == (1, True)
    producer.send(topic, b"named", delay="10d", schedule_id="id-1").result(20)
    named = ("--topic", topic, "--id", "id-1")
    assert "id-1" in run("schedule", "describe", *named).out
    assert run("schedule", "move", *named, "--delay", "20d").code == 0
    assert run("schedule", "cancel", "--id", "id-1").code == 2
    assert "id-1 is cancelled" in run("schedule", "cancel", *named).out
    assert (run("schedule", "deliver-now", *named).code, run("schedule", "describe", *named).code) == (1, 1)
    assert "due in" in run("produce", "--topic", topic, "--delay", "1s", stdin="line\n").err
    assert [record.value for _, record in read(topic, 1)] == [b"line"]
