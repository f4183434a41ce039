"""Half messages in a real Ray, with three brokers: committed, rolled back, checked, and killed in every place.

They run in file order, on the cluster that stays; each has a topic and a group of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import raylog
from raylog.base.errors import (
    HalfMessageDecided,
    HalfMessagesFull,
    InvalidConfig,
    InvalidTxnState,
    UnknownHalfMessage,
)
from raylog.base.ids import TopicPartition
from tests.cluster.ray_support import actor_names, call_actor, kill
from tests.unit.cli.support import raylog as command
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SCHEDULE = "__scheduled"


@pytest.fixture(scope="module", autouse=True)
def checked_often(three_brokers: raylog.Cluster) -> Iterator[None]:
    with raylog.HalfMessageProducer("first") as producer, raylog.Admin() as admin:
        admin.create_topic("first", replication_factor=3)
        producer.prepare("first", b"x").rollback()  # `__scheduled` exists from now on
        admin.alter_topic_config(SCHEDULE, {"half.check.interval.ms": "300"})
        yield
        admin.alter_topic_config(SCHEDULE, {}, delete=["half.check.interval.ms"])


@pytest.fixture
def topic(admin: raylog.Admin, request: pytest.FixtureRequest) -> Iterator[str]:
    """One replica a partition, each a process that has to start; the schedule, whose leaders are killed, has three."""
    name = request.node.name.removeprefix("test_")[:60]
    admin.create_topic(name, partitions=2, replication_factor=1)
    yield name
    admin.delete_topic(name)


def values(topic: str, count: int, quiet_ms: int = 700, timeout_s: float = 60.0) -> list[bytes]:
    """What is visible in a topic, when at least so many are, and no more came for a while."""
    found: list[bytes] = []
    with raylog.Consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(2)])
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            polled = consumer.poll(timeout_ms=quiet_ms)
            found += [record.value or b"" for records in polled.values() for record in records]
            if len(found) >= count and not polled:
                break
    return found


def kill_leader_of_the_schedule(admin: raylog.Admin) -> None:
    leader = admin.describe_topic(SCHEDULE).partitions[0].leader
    (name,) = [each for each in actor_names() if each.startswith(f"replica:{SCHEDULE}-0:broker-{leader}:")]
    kill(call_actor(name, "status")["pid"])
    wait_for(lambda: admin.describe_topic(SCHEDULE).partitions[0].leader not in (-1, leader), "another leads")


def test_records_are_visible_when_they_are_committed(topic: str) -> None:
    with raylog.HalfMessageProducer(topic) as producer:
        half = producer.prepare(topic, b"debit", key=b"k", headers={"a": b"1"})
        half.add(topic, b"credit", key=b"k")
        producer.send(topic, b"other", key=b"k").result(20)
        assert values(topic, 1) == [b"other"], "it is held, and holds up no other record"
        half.commit()
        half.commit()
        assert values(topic, 3) == [b"other", b"debit", b"credit"]
        with pytest.raises(InvalidTxnState, match="prepare another one"):
            half.add(topic, b"late")
        with pytest.raises(InvalidTxnState, match="COMMIT"):
            half.rollback()


def test_a_block_commits_or_rolls_back(topic: str) -> None:
    with raylog.HalfMessageProducer(topic) as producer:
        with producer.prepare(topic, b"paid"):
            pass
        with pytest.raises(ZeroDivisionError), producer.prepare(topic, b"not paid"):
            raise ZeroDivisionError
        assert values(topic, 1) == [b"paid"]


def test_the_checker_of_the_group_decides_what_its_sender_did_not(topic: str, admin: raylog.Admin) -> None:
    with raylog.HalfMessageProducer(topic, check_after=100) as dead:
        for txid in ("paid", "unpaid", "slow"):
            dead.prepare(topic, txid.encode(), key=b"k", txid=f"{topic}-{txid}")
    seen: list[raylog.UndecidedHalf] = []

    def check(half: raylog.UndecidedHalf) -> raylog.HalfVerdict | None:
        seen.append(half)
        if half.txid.endswith("slow"):
            if half.checks == 0:
                raise TimeoutError("the bank does not answer")
            return None if half.checks < 3 else raylog.HalfVerdict.COMMIT
        return raylog.HalfVerdict.ROLLBACK if half.txid.endswith("unpaid") else raylog.HalfVerdict.COMMIT

    with raylog.HalfMessageProducer(topic, check):
        assert sorted(values(topic, 2)) == [b"paid", b"slow"]
    assert [half.checks for half in seen if half.txid.endswith("slow")] == [0, 1, 2, 3]
    (record,) = seen[0].records
    assert (record.topic, record.key, record.partition) == (topic, b"k", None)
    assert not admin.list_half_messages(topic)


def test_the_first_decision_stands(topic: str, admin: raylog.Admin) -> None:
    with raylog.HalfMessageProducer(topic) as producer:
        half = producer.prepare(topic, b"x", txid=f"{topic}-1")
        admin.rollback_half_message(topic, half.txid)
        with pytest.raises(HalfMessageDecided, match="ROLLED_BACK"):
            half.commit()
        half.rollback()
        with pytest.raises(HalfMessageDecided):
            admin.commit_half_message(topic, half.txid)
        with pytest.raises(UnknownHalfMessage, match="raylog half list"):
            admin.commit_half_message(topic, "never prepared")
    assert values(topic, 0) == []


def test_after_the_last_check_an_administrator_decides(
    topic: str, admin: raylog.Admin, three_brokers: raylog.Cluster
) -> None:
    admin.alter_topic_config(SCHEDULE, {"half.check.limit": "2"})
    called_twice = threading.Event()

    def check(half: raylog.UndecidedHalf) -> None:
        if half.checks == 1:
            called_twice.set()

    with raylog.HalfMessageProducer(topic, check, check_after=0) as producer:
        producer.prepare(topic, b"by hand", txid="t-1")
        assert called_twice.wait(30)
        wait_for(lambda: admin.list_half_messages(topic)[0].is_unresolved, "it was checked twice")
    where = ("--bootstrap", three_brokers.bootstrap())
    (row,) = json.loads(command("half", "list", "--json", *where, RAYLOG_SECRET=three_brokers.secret()).out)
    assert (row["txid"], row["checks"], row["topics"], row["records"]) == ("t-1", 2, [topic], 1)
    assert "decide by hand" in command("half", "list", *where, RAYLOG_SECRET=three_brokers.secret()).out
    assert command("half", "commit", topic, "t-1", *where, RAYLOG_SECRET=three_brokers.secret()).code == 0
    refused = command("half", "rollback", topic, "t-1", *where, RAYLOG_SECRET=three_brokers.secret())
    assert (refused.code, "COMMITTED" in refused.err) == (1, True)
    assert values(topic, 1) == [b"by hand"]
    assert "No half message" in command("half", "list", *where, RAYLOG_SECRET=three_brokers.secret()).out


def test_unresolved_ones_can_be_dead_letters(topic: str, admin: raylog.Admin) -> None:
    admin.alter_topic_config(SCHEDULE, {"half.check.limit": "1", "half.on.unresolved": "dead_letter"})
    with raylog.HalfMessageProducer(topic, lambda _: None, check_after=0) as producer:
        producer.prepare(topic, b"orphan", txid="t-1")
        wait_for(lambda: "__undeliverable" in admin.list_topics(internal=True), "the topic is created")
        found: list[raylog.Record] = []
        with raylog.Consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition("__undeliverable", 0)])

            def is_there() -> bool:
                found.extend(record for records in consumer.poll(timeout_ms=200).values() for record in records)
                return any(record.value == b"orphan" for record in found)

            wait_for(is_there, "the dead letter is there")
    (headers,) = [dict(record.headers) for record in found if record.value == b"orphan"]
    assert (headers["raylog-dead-reason"], headers["__dlq.errors.topic"]) == (b"half_unresolved", topic.encode())
    assert values(topic, 0) == []
    admin.alter_topic_config(SCHEDULE, {"half.check.limit": "15", "half.on.unresolved": "hold"})


def test_bad_input_is_refused_with_the_way_out(topic: str, admin: raylog.Admin) -> None:
    with pytest.raises(InvalidConfig, match="exclude each other"):
        raylog.HalfMessageProducer(topic, transactional_id="t")
    with pytest.raises(InvalidConfig, match="group names"):
        raylog.HalfMessageProducer("")
    unsafe = raylog.HalfMessageProducer(topic, acks=1, enable_idempotence=False)
    with unsafe, pytest.raises(InvalidConfig, match="acks='all'"):
        unsafe.prepare(topic, b"x")
    with raylog.HalfMessageProducer(topic, delivery_timeout_ms=2_000, request_timeout_ms=1_000) as producer:
        with pytest.raises(ValueError, match="a day"):
            producer.prepare(topic, b"x", check_after="2d")
        admin.alter_topic_config(SCHEDULE, {"half.max.pending": "1"})
        half = producer.prepare(topic, b"x")
        with pytest.raises((HalfMessagesFull, raylog.DeliveryTimedOut), match=r"half\.max\.pending"):
            half.add(topic, b"y")
        with pytest.raises(InvalidTxnState, match="roll it back"):
            half.commit()
        half.rollback()
        admin.alter_topic_config(SCHEDULE, {"half.max.pending": "100000"})


def test_the_asyncio_twin_does_the_same(topic: str) -> None:
    async def both() -> None:
        async def check(half: raylog.UndecidedHalf) -> str:
            await asyncio.sleep(0)
            return "COMMIT" if half.records[0].value == b"forgotten" else "ROLLBACK"

        async with raylog.AsyncHalfMessageProducer(topic, check, check_after=200) as producer:
            async with await producer.prepare(topic, b"paid") as half:
                await half.add(topic, b"more")
            try:
                async with await producer.prepare(topic, b"not paid"):
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            await producer.prepare(topic, b"forgotten")
            await asyncio.to_thread(wait_for, lambda: len(values(topic, 3, 300, 1.0)) == 3, "all are there")

    asyncio.run(both())
    assert sorted(values(topic, 3)) == [b"forgotten", b"more", b"paid"]


SENDER = """
import os, sqlite3, sys, time
import raylog

path, topic, first, address = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
db = sqlite3.connect(path, timeout=30)
print("ready", flush=True)
with raylog.HalfMessageProducer(topic, bootstrap_servers=address, check_after=300) as producer:
    for number in range(first, first + 1000):
        half = producer.prepare(topic, b"%d" % number, key=b"k", txid=f"t-{number}")
        try:
            with db:
                db.execute("INSERT INTO paid VALUES (?)", (f"t-{number}",))
        except sqlite3.IntegrityError:  # the checker was here before
            half.rollback()
        else:
            half.commit()
"""

CHECKER = """
import signal, sqlite3, sys
import raylog

path, topic, address = sys.argv[1], sys.argv[2], sys.argv[3]

def check(half):
    with sqlite3.connect(path, timeout=30) as db:
        db.execute("INSERT OR IGNORE INTO checked VALUES (?)", (half.txid,))  # from now on it cannot be paid
        found = db.execute("SELECT 1 FROM paid WHERE txid = ?", (half.txid,)).fetchone()
    return "COMMIT" if found else "ROLLBACK"

with raylog.HalfMessageProducer(topic, check, bootstrap_servers=address):
    print("ready", flush=True)
    signal.pause()  # until it is killed
"""


def start(script: str, *arguments: str, secret: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAYLOG_SECRET": secret},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def has_paid(path: str, first: int, count: int) -> bool:
    """Whether the sender that began at this number has paid so often."""
    with sqlite3.connect(path, timeout=30) as db:
        [[paid]] = db.execute(
            "SELECT count(*) FROM paid WHERE CAST(substr(txid, 3) AS INTEGER) BETWEEN ? AND ?", (first, first + 999)
        )
    return int(paid) >= count


def test_killed_processes_leave_topic_and_database_equal(
    topic: str, admin: raylog.Admin, three_brokers: raylog.Cluster, tmp_path: Path
) -> None:
    """Eight times a sender is killed at any moment, with the checker and the leader of the schedule in turn."""
    path, where = str(tmp_path / "bank.db"), (three_brokers.bootstrap(),)
    with sqlite3.connect(path) as db:
        db.executescript("CREATE TABLE paid (txid PRIMARY KEY); CREATE TABLE checked (txid PRIMARY KEY);")
        db.execute(
            "CREATE TRIGGER late BEFORE INSERT ON paid WHEN EXISTS (SELECT 1 FROM checked WHERE txid = NEW.txid) "
            "BEGIN SELECT RAISE(ABORT, 'it was rolled back'); END"
        )
    running: list[subprocess.Popen[str]] = []
    begin = partial(start, secret=three_brokers.secret())
    try:
        checker = begin(CHECKER, path, topic, *where)
        running.append(checker)
        for turn in range(8):
            sender = begin(SENDER, path, topic, str(turn * 1000), *where)
            running.append(sender)
            wait_for(partial(has_paid, path, turn * 1000, 7 + turn), "the sender pays")  # then anywhere in its loop
            if turn % 3 == 1:
                kill_leader_of_the_schedule(admin)
            if turn % 3 == 2:
                checker.send_signal(signal.SIGKILL)
                checker = begin(CHECKER, path, topic, *where)
                running.append(checker)
            sender.send_signal(signal.SIGKILL)
        wait_for(lambda: not admin.list_half_messages(topic), "all are decided", timeout_s=90)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    with sqlite3.connect(path) as db:
        paid = {txid for (txid,) in db.execute("SELECT txid FROM paid")}
    found = [f"t-{int(value)}" for value in values(topic, len(paid))]
    assert len(found) == len(set(found)), "each once"
    assert set(found) == paid
    assert len(paid) > 50
