"""Partitions that sleep after a second without use, in a real Ray; one cluster of three brokers for all tests.

A partition has three replicas where a test is about followers or other brokers, else one: a wake starts a process each.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raylog
from raylog import TopicPartition
from raylog.launch.cluster import Cluster
from tests.cluster.ray_support import actor_names, call_actor, kill, online
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CONFIG = {"replica.sleep.after.ms": "1000", "group.initial.rebalance.delay.ms": "50"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def cluster(shared_ray: None, root: Path) -> Iterator[Cluster]:
    with raylog.start(root, brokers=3, config=CONFIG) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[raylog.Admin]:
    with raylog.Admin() as client:
        yield client


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[raylog.Producer]:
    with raylog.Producer() as client:
        yield client


def rows(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.status()["topics"][topic]
    return found


def epochs(cluster: Cluster, topic: str) -> list[int]:
    """The leader epochs: each wake raises one."""
    return [row["leader_epoch"] for row in rows(cluster, topic)]


def processes(topic: str) -> list[str]:
    return [name for name in actor_names() if name.startswith(f"replica:{topic}-")]


def wait_asleep(cluster: Cluster, topic: str) -> None:
    wait_for(lambda: all(row["asleep"] for row in rows(cluster, topic)), f"{topic} sleeps")
    wait_for(lambda: not processes(topic), f"the processes of {topic} have ended")


def put(producer: raylog.Producer, topic: str, *values: bytes, partition: int = 0) -> list[int]:
    """Write records; returns their offsets."""
    sent = [producer.send(topic, value, partition=partition) for value in values]
    return [future.result(60).offset for future in sent]


def values(topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    """Read a partition from its beginning."""
    with raylog.Consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[bytes | None] = []
        while len(found) < count:
            records = consumer.consume(count - len(found), timeout=60)
            assert records, f"{count} records are there, {len(found)} came"
            found += [record.value for record in records]
        return found


def test_a_new_topic_has_leaders_and_no_process(cluster: Cluster, admin: raylog.Admin) -> None:
    described = admin.create_topic("new", partitions=3, replication_factor=3)
    assert all(partition.leader > 0 for partition in described.partitions)
    assert "new" in admin.list_topics()
    assert all(row["asleep"] and row["isr"] == row["replicas"] for row in rows(cluster, "new"))
    assert processes("new") == []


def test_a_record_wakes_its_partition_alone_which_sleeps_again(
    cluster: Cluster, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.create_topic("one", partitions=3, replication_factor=3)
    assert put(producer, "one", b"a", b"b", partition=1) == [0, 1]
    assert epochs(cluster, "one") == [0, 1, 0]
    wait_asleep(cluster, "one")
    assert put(producer, "one", b"c", partition=1) == [2]
    assert values("one", 3, 1) == [b"a", b"b", b"c"]
    wait_asleep(cluster, "one")
    assert values("one", 3, 1) == [b"a", b"b", b"c"], "reading wakes it too"


def test_where_a_log_begins_and_ends_is_answered_without_waking(
    cluster: Cluster, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.create_topic("queried", partitions=2, replication_factor=1)
    put(producer, "queried", b"a", b"b")
    full, empty = TopicPartition("queried", 0), TopicPartition("queried", 1)
    with raylog.Consumer("queried", group_id="readers", auto_offset_reset="earliest") as consumer:
        assert len(consumer.consume(2, timeout=60)) == 2
        consumer.commit()
    wait_asleep(cluster, "queried")
    before = epochs(cluster, "queried")
    with raylog.Consumer() as consumer:
        assert consumer.beginning_offsets([full, empty]) == {full: 0, empty: 0}
        assert consumer.end_offsets([full, empty]) == {full: 2, empty: 0}
        assert consumer.offsets_for_times({empty: 5}) == {empty: None}
    lag = admin.group_lag("readers")[full]
    assert (lag.records, lag.seconds) == (0, 0)
    admin.describe_topic("queried")
    assert epochs(cluster, "queried") == before
    with raylog.Consumer() as consumer:
        found = consumer.offsets_for_times({full: 0})[full]
        assert found is not None
        assert found.offset == 0, "a time wakes a partition that has records"


def test_a_consumer_that_waits_gets_the_records_that_wake_the_partition(
    cluster: Cluster, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.create_topic("parked", partitions=1, replication_factor=1)
    found: list[bytes | None] = []
    is_over = threading.Event()

    def read() -> None:
        with raylog.Consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("parked", 0)])
            while not is_over.is_set():
                found.extend(record.value for record in consumer.consume(10, timeout=0.5))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        put(producer, "parked", b"first")
        wait_for(lambda: found == [b"first"], "the record that woke it arrives")
        wait_asleep(cluster, "parked")
        put(producer, "parked", b"second")
        wait_for(lambda: found == [b"first", b"second"], "the next one too")
    finally:
        is_over.set()
        reader.join(60)
    assert not reader.is_alive()


def test_records_without_acknowledgement_wake_a_partition(cluster: Cluster, admin: raylog.Admin) -> None:
    admin.create_topic("unacknowledged", partitions=1, replication_factor=1)
    with raylog.Producer(acks=0) as producer:
        producer.send("unacknowledged", b"a", partition=0)
        producer.flush()
        assert values("unacknowledged", 1) == [b"a"]
        wait_asleep(cluster, "unacknowledged")
        producer.send("unacknowledged", b"b", partition=0)
        producer.flush()
    assert values("unacknowledged", 2) == [b"a", b"b"]


def test_an_administrator_wakes_a_topic(cluster: Cluster, admin: raylog.Admin) -> None:
    admin.create_topic("woken", partitions=2, replication_factor=1, config={"replica.sleep.after.ms": "600000"})
    assert admin.wake_partitions("woken", [1]) == 1
    assert admin.wake_partitions("woken") == 1
    assert admin.wake_partitions("woken") == 0
    wait_for(lambda: all(row["leader_epoch"] == 1 for row in rows(cluster, "woken")), "both are led by replicas")
    assert len(processes("woken")) == 2


def test_a_broker_that_is_killed_hands_its_sleepers_over(
    cluster: Cluster, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.create_topic("handed", partitions=1, replication_factor=3)
    put(producer, "handed", b"a")
    wait_asleep(cluster, "handed")
    [before] = rows(cluster, "handed")
    kill(call_actor(f"broker-{before['leader']}", "pid"))
    wait_for(lambda: rows(cluster, "handed")[0]["leader"] not in (-1, before["leader"]), "another broker leads it")
    [after] = rows(cluster, "handed")
    assert (after["asleep"], after["leader_epoch"]) == (True, before["leader_epoch"] + 1)
    assert after["isr"] == before["isr"]
    assert put(producer, "handed", b"b") == [1]
    assert values("handed", 2) == [b"a", b"b"]
    wait_for(lambda: online(cluster) == {1, 2, 3}, "the broker is back")


def test_a_topic_that_is_deleted_asleep_leaves_no_folder(
    cluster: Cluster, root: Path, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.create_topic("deleted", partitions=2, replication_factor=3)
    put(producer, "deleted", b"a")
    wait_asleep(cluster, "deleted")
    assert len(list(root.glob("broker-*/deleted-*"))) == 3
    admin.delete_topic("deleted")
    wait_for(lambda: not list(root.glob("broker-*/deleted-*")), "its folders are removed")


def coordinators() -> list[str]:
    return [name for name in actor_names() if name.startswith("group-coordinator-")]


def test_a_coordinator_ends_with_its_groups_and_starts_with_them(
    cluster: Cluster, admin: raylog.Admin, producer: raylog.Producer
) -> None:
    admin.create_topic("visited", partitions=1, replication_factor=1)
    put(producer, "visited", b"a", b"b")
    for value in (b"a", b"b"):
        with raylog.Consumer("visited", group_id="visitors", auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.consume(1, timeout=60)] == [value]
            assert coordinators()
            consumer.commit()
        wait_for(lambda: not coordinators(), "the coordinator has ended")
        wait_asleep(cluster, "__consumer_offsets")
    assert admin.describe_group("visitors").offsets == {TopicPartition("visited", 0): 2}
    assert "visitors" in [found.group_id for found in admin.list_groups()]


def test_everything_survives_a_stop_asleep(cluster: Cluster, root: Path, admin: raylog.Admin) -> None:
    """The last test of this file: it stops the cluster."""
    admin.create_topic("kept", partitions=1, replication_factor=3)
    admin.create_topic("ready", partitions=2, replication_factor=3, config={"replica.sleep.after.ms": -1})
    with raylog.Producer() as producer:
        put(producer, "kept", b"a", b"b")
        put(producer, "ready", b"a")
    with raylog.Consumer("kept", group_id="keepers", auto_offset_reset="earliest") as consumer:
        assert len(consumer.consume(1, timeout=60)) == 1
        consumer.commit()
    wait_asleep(cluster, "kept")
    before, ready_before = epochs(cluster, "kept"), epochs(cluster, "ready")
    assert not any(row["asleep"] for row in rows(cluster, "ready"))
    cluster.stop()
    with raylog.start(root) as again:
        assert all(row["asleep"] for row in rows(again, "kept"))
        assert epochs(again, "kept") == before
        assert processes("kept") == []
        with raylog.Consumer("kept", group_id="keepers") as consumer:
            assert [record.value for record in consumer.consume(1, timeout=60)] == [b"b"]
        with raylog.Producer() as producer:
            assert put(producer, "kept", b"c") == [2]
        assert values("kept", 3) == [b"a", b"b", b"c"]
        wait_for(lambda: not any(row["asleep"] for row in rows(again, "ready")), "ready is awake again")
        assert epochs(again, "ready") == [epoch + 1 for epoch in ready_before], "it slept for the stop, and woke once"
        assert values("ready", 1) == [b"a"]
