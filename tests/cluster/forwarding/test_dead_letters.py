"""Expired records and redrives in a real Ray, with three brokers, whose processes are killed meanwhile.

They run in file order, on the cluster that stays; each has topics of its own.
"""

from __future__ import annotations

import time
from functools import partial

import pytest

import raylog
from raylog.base.errors import InvalidConfig, InvalidRequest, RedriveRunning, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.core.dead_letters import HOPS, REASON
from tests.cluster.ray_support import actor_names, call_actor, kill
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def read(
    topic: str, count: int, *, partitions: int = 1, timeout_s: float = 30.0, quiet_s: float = 0.5
) -> list[tuple[float, raylog.Record]]:
    """The records of a topic, each with the time in ms when it was seen; more would show up within ``quiet_s``."""
    found: list[tuple[float, raylog.Record]] = []
    with raylog.Consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            polled = consumer.poll(timeout_ms=100 if len(found) < count else int(quiet_s * 1000))
            found += [(time.time() * 1000, record) for records in polled.values() for record in records]
            if len(found) >= count and not polled:
                break
    return found


def kill_leader(admin: raylog.Admin, topic: str) -> None:
    """Kill the leader of a topic's first partition, and wait until another one leads."""

    def running() -> list[str]:
        prefix = f"replica:{topic}-0:broker-{admin.describe_topic(topic).partitions[0].leader}:"
        return [each for each in actor_names() if each.startswith(prefix)]

    wait_for(running, "it is awake")
    leader = admin.describe_topic(topic).partitions[0].leader
    (name,) = running()
    kill(call_actor(name, "status")["pid"])
    wait_for(lambda: admin.describe_topic(topic).partitions[0].leader not in (-1, leader), "another leads")


# Topics whose leaders are killed have three replicas, the others one: each is a process that has to start.


def is_done(admin: raylog.Admin, number: int) -> bool:
    return admin.describe_redrive(number).has_ended


def test_expired_records_go_to_the_dead_letter_topic(admin: raylog.Admin, producer: raylog.Producer) -> None:
    """RabbitMQ's recipe for delays: a topic without consumers, a time to live, and a dead-letter topic."""
    admin.create_topic("due", partitions=1, replication_factor=1)
    admin.create_topic(
        "wait_2s", partitions=1, replication_factor=1, config={"ttl.ms": 2_000, "dead.letter.topic": "due"}
    )
    began_ms = time.time() * 1000
    sent = [producer.send("wait_2s", b"%d" % number, key=b"k", headers={"a": b"1"}) for number in range(50)]
    stamps = [future.result(20).timestamp_ms for future in sent]
    found = read("due", 50)
    assert [record.value for _, record in found] == [b"%d" % number for number in range(50)]
    assert all(seen_ms >= stamp + 2_000 for (seen_ms, _), stamp in zip(found, stamps, strict=True))
    assert found[-1][0] - began_ms < 12_000
    headers = dict(found[7][1].headers)
    assert headers["a"] == b"1"
    assert headers["__dlq.errors.topic"] == b"wait_2s"
    assert headers["__dlq.errors.offset"] == b"7"
    assert headers[REASON] == b"expired"
    assert found[7][1].key == b"k"


def test_killed_leaders_forward_each_record_once(admin: raylog.Admin, producer: raylog.Producer) -> None:
    admin.create_topic("target", partitions=1, replication_factor=3)
    admin.create_topic(
        "source", partitions=1, replication_factor=3, config={"ttl.ms": 1_000, "dead.letter.topic": "target"}
    )
    for round_number in range(4):
        for number in range(100):
            producer.send("source", b"%d" % (100 * round_number + number))
        producer.flush(30)
        if round_number in (1, 2):
            kill_leader(admin, "source" if round_number == 1 else "target")
    kill_leader(admin, "__forwarding")
    found = read("target", 400, timeout_s=60)
    assert [int(record.value or b"") for _, record in found] == list(range(400))


def test_a_record_with_a_time_of_its_own_does_not_wait_for_others(
    admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.create_topic("own_late", partitions=2, replication_factor=1)
    admin.create_topic("own", partitions=1, replication_factor=1, config={"dead.letter.topic": "own_late"})
    producer.send("own", b"long", ttl="1h").result(20)
    producer.send("own", b"none").result(20)
    short = producer.send("own", b"short", key=b"k", headers={"a": b"1"}, ttl="1500ms").result(20)
    ((seen_ms, record),) = read("own_late", 1, partitions=2, quiet_s=1.0)
    assert seen_ms >= short.timestamp_ms + 1_500
    assert (record.key, record.value) == (b"k", b"short")
    headers = dict(record.headers)
    assert headers.pop("__dlq.errors.offset") == b"2"
    assert (headers["a"], headers[REASON]) == (b"1", b"expired")
    assert "raylog-ttl" not in headers
    assert "raylog-schedule" not in headers
    admin.alter_topic_config("own", {"ttl.ms": 100})
    ((_, plain),) = read("own_late", 2, partitions=2, quiet_s=1.0)[1:]
    assert plain.value == b"none"  # the longer one is filed, and comes when it was filed for


def test_consumers_skip_what_has_expired(admin: raylog.Admin, producer: raylog.Producer) -> None:
    admin.create_topic("news", partitions=1, replication_factor=1)
    producer.send("news", b"old", ttl=1)
    producer.send("news", b"new", ttl="1h")
    producer.send("news", b"eternal").result(20)
    wait_for(lambda: len(read("news", 3)) == 3, "all are stored")
    with raylog.Consumer(auto_offset_reset="earliest", skip_expired=True) as consumer:
        consumer.assign([TopicPartition("news", 0)])
        found: list[raylog.Record] = []

        def is_through() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                found.extend(records)
            return len(found) >= 2

        wait_for(is_through, "the others are read")
        assert consumer.position(TopicPartition("news", 0)) == 3
    assert [record.value for record in found] == [b"new", b"eternal"]


def test_settings_change_at_run_time(admin: raylog.Admin, producer: raylog.Producer) -> None:
    admin.create_topic("late", partitions=1, replication_factor=1)
    admin.create_topic("plain", partitions=1, replication_factor=1)
    producer.send("plain", b"early").result(20)
    admin.alter_topic_config("plain", {"ttl.ms": 3_600_000, "dead.letter.topic": "late"})
    producer.send("plain", b"second").result(20)
    assert read("late", 0) == []
    admin.alter_topic_config("plain", {"ttl.ms": 0, "dead.letter.key": "chosen"})
    assert [(record.key, record.value) for _, record in read("late", 2)] == [
        (b"chosen", b"early"),
        (b"chosen", b"second"),
    ]
    admin.alter_topic_config("plain", {}, delete=["ttl.ms"])

    def one_stays() -> bool:
        before = len(read("late", 2))
        producer.send("plain", b"stays").result(20)
        return len(read("late", before, quiet_s=1.0)) == before

    wait_for(one_stays, "the leader knows that nothing expires")


def test_what_a_group_has_committed_does_not_expire(admin: raylog.Admin, producer: raylog.Producer) -> None:
    admin.create_topic("missed", partitions=1, replication_factor=1)
    admin.create_topic("work", partitions=1, replication_factor=1)
    for number in range(10):
        producer.send("work", b"%d" % number)
    producer.flush(30)
    with raylog.Consumer(
        "work", group_id="readers-of-work", auto_offset_reset="earliest", max_poll_records=4
    ) as consumer:
        wait_for(lambda: consumer.poll(timeout_ms=500), "records are read")
        consumer.commit()
    config = {"ttl.ms": 500, "dead.letter.topic": "missed", "dead.letter.group": "readers-of-work"}
    admin.alter_topic_config("work", config)
    found = read("missed", 6)
    assert [int(record.value or b"") for _, record in found] == list(range(4, 10))
    assert dict(found[0][1].headers)["__dlq.errors.group"] == b"readers-of-work"


def test_a_missing_dead_letter_topic_loses_nothing(admin: raylog.Admin, producer: raylog.Producer) -> None:
    admin.create_topic(
        "orphans", partitions=1, replication_factor=1, config={"ttl.ms": 100, "dead.letter.topic": "not_there"}
    )
    producer.send("orphans", b"alone").result(20)
    wait_for(lambda: "__undeliverable" in admin.list_topics(internal=True), "the topic is created")
    found: list[raylog.Record] = []

    def is_there() -> bool:
        found[:] = [record for _, record in read("__undeliverable", 1) if record.value == b"alone"]
        return bool(found)

    wait_for(is_there, "the record is there")  # with what other tests have left
    (headers,) = [dict(record.headers) for record in found]
    assert headers[REASON] == b"undeliverable"
    assert b"not_there" in (headers["__dlq.errors.message"] or b"")


def test_a_circle_of_dead_letters_ends(admin: raylog.Admin, producer: raylog.Producer) -> None:
    for name, other in (("ping", "pong"), ("pong", "ping")):
        config = {"ttl.ms": 20, "dead.letter.topic": other}
        admin.create_topic(name, partitions=1, replication_factor=1, config=config)
    producer.send("ping", b"ball").result(20)

    def landed() -> bool:
        return any(record.value == b"ball" for _, record in read("__undeliverable", 1, quiet_s=0.2))

    wait_for(landed, "the ball has landed", timeout_s=60)
    (ball,) = [record for _, record in read("__undeliverable", 1) if record.value == b"ball"]
    assert dict(ball.headers)[HOPS] == b"17"


def test_dead_letters_are_sent_back(admin: raylog.Admin, producer: raylog.Producer) -> None:
    count = len(read("due", 50))
    number = admin.redrive("due")
    wait_for(partial(is_done, admin, number), "the redrive is done", timeout_s=60)
    found = admin.describe_redrive(number)
    assert (found.state, found.sent, found.left) == ("done", count, 0)
    again = admin.redrive("due")  # they expire once more, and come back
    wait_for(partial(is_done, admin, again), "the redrive is done", timeout_s=60)
    assert len(read("wait_2s", 50 + count)) >= 50 + count


def test_a_redrive_with_a_filter_and_a_rate_survives_its_leader(admin: raylog.Admin, producer: raylog.Producer) -> None:
    admin.create_topic("chosen", partitions=1, replication_factor=3)
    began_s = time.monotonic()
    number = admin.redrive("target", "chosen", where={"reason": "expired", "topic": "source"}, rate=80)
    with pytest.raises(RedriveRunning, match=r"runs|begin"):
        admin.redrive("target", "chosen")
    kill_leader(admin, "__forwarding")
    wait_for(partial(is_done, admin, number), "the redrive is done", timeout_s=90)
    assert time.monotonic() - began_s >= 3.5
    found = read("chosen", 400)
    assert [int(record.value or b"") for _, record in found] == list(range(400))
    assert all(REASON not in dict(record.headers) for _, record in found)
    other = admin.redrive("target", "chosen", where={"reason": "rejected"})
    wait_for(partial(is_done, admin, other), "the redrive is done")
    assert admin.describe_redrive(other).sent == 0


def test_a_redrive_is_cancelled(admin: raylog.Admin) -> None:
    number = admin.redrive("target", "chosen", rate=5, from_start=True)
    assert admin.cancel_redrive(number)
    wait_for(partial(is_done, admin, number), "it has ended")
    found = admin.describe_redrive(number)
    assert found.state == "cancelled"
    assert found.left > 0
    assert not admin.cancel_redrive(number)


def test_what_cannot_be_redriven_is_refused(admin: raylog.Admin) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        admin.redrive("nothing_here")
    with pytest.raises(InvalidRequest, match="reason"):
        admin.redrive("target", "chosen", where={"reson": "expired"})
    with pytest.raises(InvalidRequest, match="own"):
        admin.redrive("target", "__consumer_offsets")
    with pytest.raises(InvalidRequest):
        admin.redrive("target", "target")
    with pytest.raises(InvalidRequest):
        admin.cancel_redrive(10_000)


def test_settings_that_cannot_work_are_refused(admin: raylog.Admin) -> None:
    with pytest.raises(InvalidConfig, match="retention"):
        admin.create_topic("short", config={"ttl.ms": 10_000, "retention.ms": 5_000, "dead.letter.topic": "due"})
    with pytest.raises(InvalidConfig, match="own"):
        admin.create_topic("self", config={"ttl.ms": 10_000, "dead.letter.topic": "self"})
    with pytest.raises(InvalidConfig):
        admin.create_topic("inner", config={"ttl.ms": 10_000, "dead.letter.topic": "__consumer_offsets"})
