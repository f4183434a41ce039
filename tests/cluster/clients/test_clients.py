"""Producers and consumers in a real cluster: worker pools that are killed, interceptors, topics made by their use."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import raylog
from raylog.base.ids import TopicPartition
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

RECORDS, KEYS = 3_000, 60
CONFIG = {
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
    "group.initial.rebalance.delay.ms": "50",
    "group.min.session.timeout.ms": "100",
}


@pytest.fixture(scope="module")
def cluster(shared_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[raylog.Cluster]:
    with raylog.start(tmp_path_factory.mktemp("data"), config=CONFIG) as running:
        yield running


@pytest.mark.usefixtures("cluster")
def test_a_topic_is_created_by_its_use_with_the_clusters_partitions() -> None:
    with raylog.Producer() as producer:
        assert producer.partitions_for("made") == {0, 1, 2}
        assert producer.send("made", b"x").result(30).offset == 0
        with pytest.raises(raylog.InvalidTopic):
            producer.send("not a legal name", b"x")
    with raylog.Consumer("subscribed", group_id="g", auto_offset_reset="earliest") as consumer:
        wait_for(lambda: consumer.poll(50) or consumer.assignment(), "the group has the topic", 30)
        assert len(consumer.assignment()) == 3
    with raylog.Admin() as admin:
        assert {"made", "subscribed"} <= set(admin.list_topics())
        with pytest.raises(raylog.UnknownTopicOrPartition):
            admin.describe_topics(["described"])


@pytest.mark.usefixtures("cluster")
def test_interceptors_partitioners_and_metrics_meet_in_a_stream() -> None:
    class Marking(raylog.ProducerInterceptor):
        def on_send(self, record: raylog.ProducerRecord) -> raylog.ProducerRecord:
            return msgspec.structs.replace(record, value={**record.value, "marked": True})

    class Unmarked(raylog.ConsumerInterceptor):
        def on_consume(self, record: raylog.Record) -> raylog.Record | None:
            return record if record.value.pop("marked") else None

    began_ms = int(time.time() * 1000)  # old records would fall to retention at once
    options: dict[str, Any] = {"value_serializer": "msgpack", "interceptors": [Marking()], "partitioner": "round_robin"}
    with raylog.Producer(**options) as producer:
        sent = producer.send_batch(
            "stream", [{"n": n} for n in range(90)], headers=[[("n", b"%d" % n)] for n in range(90)],
            timestamp_ms=[began_ms + n for n in range(90)],
        )  # fmt: skip
        assert sorted(piece.count for piece in sent.result(30)) == [30, 30, 30]
        assert producer.metrics().topics["stream"]["record-send-total"] == 90
    reading: dict[str, Any] = {"value_deserializer": "msgpack", "interceptors": [Unmarked()]}
    with raylog.Consumer("stream", auto_offset_reset="earliest", **reading) as consumer:
        records = [next(consumer) for _ in range(90)]
        assert consumer.metrics()["records-consumed-total"] == 90
        where = TopicPartition("stream", 0)
        found = consumer.offsets_for_leader_epoch({where: 1})
        assert found[where].end_offset == 30
    assert sorted(record.value["n"] for record in records) == list(range(90))
    for record in records:
        number = record.value["n"]
        assert record.value == {"n": number}
        assert (record.timestamp_ms, record.headers) == (began_ms + number, (("n", b"%d" % number),))
        assert record.partition == number % 3


def test_killed_pools_leave_nothing_out_and_keep_the_order_of_each_key(cluster: raylog.Cluster, tmp_path: Path) -> None:
    topic = "work"
    with raylog.Producer() as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, b"%d" % (number % KEYS))
    assert cluster.status()
    options = {
        "topic": topic, "group_id": "pool", "auto_offset_reset": "earliest", "enable_auto_commit": False,
        "auto_commit_interval_ms": 100, "session_timeout_ms": 3_000, "heartbeat_interval_ms": 300, "pause_s": 0.004,
        "bootstrap": cluster.bootstrap(), "secret": cluster.secret(),
    }  # fmt: skip
    journals = [tmp_path / f"journal-{number}" for number in range(5)]
    members: list[subprocess.Popen[bytes]] = []

    def start(journal: Path) -> None:
        command = [sys.executable, "-m", "tests.cluster.clients.pool_member"]
        members.append(subprocess.Popen([*command, json.dumps({**options, "journal": str(journal)})]))

    try:
        start(journals[0])
        start(journals[1])
        for number in range(2, 5):  # each is killed while it works, and another takes its place
            wait_for(partial(has_more, journals, number * 300), "members handle records", 60)
            members[number - 2].kill()
            members[number - 2].wait(10)
            start(journals[number])
        wait_for(lambda: len(finished(journals)) >= RECORDS, "every record is handled", 90)
        with raylog.Consumer(group_id="pool") as other:
            partitions = [TopicPartition(topic, number) for number in range(3)]
            wait_for(
                lambda: (
                    [other.committed(each) for each in partitions]
                    == [other.end_offsets([each])[each] for each in partitions]
                ),
                "all is committed",
                30,
            )
    finally:
        for member in members:
            member.kill()
            member.wait(10)
    handled = [entry for journal in journals for entry in lines(journal)]
    assert {(entry.partition, entry.offset) for entry in handled} == finished(journals)
    assert len(finished(journals)) == RECORDS
    by_key: dict[tuple[int, str], list[Handled]] = defaultdict(list)
    for entry in sorted(handled, key=lambda entry: entry.began_ns):
        by_key[entry.partition, entry.key].append(entry)
    for key, entries in by_key.items():
        first_times = list(dict.fromkeys(entry.offset for entry in entries))
        assert first_times == sorted(first_times), f"{key} was handled out of order"
        for before, after in pairwise(entries):
            assert after.began_ns >= before.ended_ns, f"two handlers had {key}: {before}, {after}"
    again = len(handled) - RECORDS
    print(f"{again} of {RECORDS} records were handled again after three kills")
    assert again <= 3 * 2 * 400, "no more than what was in flight, or finished since the last commit"


class Handled(NamedTuple):
    """A record that a member has handled, and when."""

    partition: int
    key: str
    offset: int
    began_ns: int
    ended_ns: int


def lines(journal: Path) -> list[Handled]:
    text = journal.read_text() if journal.exists() else ""
    whole = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [Handled(int(row[0]), row[1], *map(int, row[2:])) for row in whole]


def has_more(journals: list[Path], count: int) -> bool:
    return len(finished(journals)) > count


def finished(journals: list[Path]) -> set[tuple[int, int]]:
    return {(entry.partition, entry.offset) for journal in journals for entry in lines(journal)}


@pytest.mark.usefixtures("cluster")
def test_a_pool_handles_200_000_records_a_second_with_order_for_each_key() -> None:
    topic, count = "fast", 600_000
    with raylog.Producer() as producer:
        for first in range(0, count, 10_000):
            numbers = range(first, first + 10_000)
            producer.send_batch(topic, [b"x" * 100] * 10_000, [b"%d" % (number % 5_000) for number in numbers])
    last: dict[bytes, int] = {}
    breaches = []

    def handle(record: raylog.Record) -> None:
        if last.get(record.key, -1) >= record.offset:
            breaches.append(record)
        last[record.key] = record.offset

    best = 0.0
    for _ in range(3):  # other tests may run beside this one
        last.clear()
        with raylog.Consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            pool = raylog.WorkerPool(consumer, handle, workers=8)
            began_s = time.monotonic()
            pool.run(idle_timeout=0.5)
            best = max(best, count / (time.monotonic() - began_s - 0.5))
            assert pool.metrics()["records-handled-total"] == count
        assert not breaches
        if best > 200_000:
            break
    print(f"{best:,.0f} records/s through a pool of 8 workers")
    assert best > 200_000


@pytest.mark.usefixtures("cluster")
def test_a_handler_that_sleeps_scales_with_its_workers() -> None:
    topic = "slow"
    with raylog.Producer() as producer:
        producer.send_batch(topic, [b"x"] * 40_000, [b"%d" % (number % 1_000) for number in range(40_000)])
    rates: dict[int, float] = {}
    for workers in (1, 8, 32):
        done = threading.Semaphore(0)
        wanted = workers * 100

        def handle(record: raylog.Record, done: threading.Semaphore = done) -> None:
            time.sleep(0.005)
            done.release()

        with raylog.Consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            pool = raylog.WorkerPool(consumer, handle, workers=workers)
            thread = threading.Thread(target=pool.run)
            thread.start()
            assert done.acquire(timeout=30)
            began_s = time.monotonic()
            for _ in range(wanted):
                assert done.acquire(timeout=30)
            rates[workers] = wanted / (time.monotonic() - began_s)
            pool.stop()
            thread.join(30)
            assert not thread.is_alive()
    print({workers: f"{rate:,.0f} records/s" for workers, rate in rates.items()})
    assert rates[8] > 5 * rates[1]
    assert rates[32] > 2.5 * rates[8]
