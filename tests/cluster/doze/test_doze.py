"""Dozing replicas in a real Ray: stopped while nothing happens, continued by whatever comes in and by a broker's death.

One cluster of three brokers serves all tests, in file order. Its topic `t` dozes, `w` does not.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import raylog
from raylog.actors.dozing.keeper import NOTE, started_at
from raylog.base.ids import TopicPartition
from raylog.storage.log.checkpoints import RECOVERY_POINT
from raylog.storage.log.kept_watermark import HIGH_WATERMARK
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PARTITIONS = 2


def noted(root: Path, broker: int) -> list[int]:
    """Return the processes that a broker has stopped at some time, and that still run."""
    found = []
    file = root / f"broker-{broker}" / NOTE
    for line in file.read_text().splitlines() if file.exists() else ():
        pid, started = line.split()
        with suppress(OSError):
            if started_at(int(pid)) == started:
                found.append(int(pid))
    return found


def state(pid: int) -> str:
    """Return the state of a process: T = stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "ended"


def all_doze(root: Path) -> bool:
    pids = [pid for broker in (1, 2, 3) for pid in noted(root, broker)]
    return len(pids) == 3 * PARTITIONS and all(state(pid) == "T" for pid in pids)


def on_cpu(pids: list[int]) -> int:
    """Return how often these processes have run on a processor."""
    return sum(
        int(task.read_text().split()[2]) for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def rest_for_long(root: Path, pids: list[int]) -> bool:
    """Whether all replicas doze, and none of these processes runs for 3 s."""
    wait_for(lambda: all_doze(root), "all replicas doze", 60)
    before, until_s = on_cpu(pids), time.monotonic() + 3
    while on_cpu(pids) == before:
        if time.monotonic() >= until_s:
            return True
        time.sleep(0.1)
    return False


def broker_pid(broker: int) -> int:
    import ray

    from raylog.actors.naming import NAMESPACE

    handle: Any = ray.get_actor(f"broker-{broker}", namespace=NAMESPACE)
    return int(ray.get(handle.pid.remote()))


def leader_of(topic: str, partition: int) -> int:
    with raylog.Admin() as admin:
        return int(admin.describe_topic(topic).partitions[partition].leader)


def isr_of(topic: str, partition: int) -> list[int]:
    with raylog.Admin() as admin:
        return sorted(admin.describe_topic(topic).partitions[partition].isr)


def pid_of(cluster: Any, topic: str, broker: int) -> int:
    return next(
        int(row["pid"])
        for row in cluster.replicas()
        if (row["topic"], row["partition"], row["broker"]) == (topic, 0, broker)
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def cluster(shared_ray: None, root: Path) -> Iterator[Any]:
    config = {"replica.doze.after.ms": "300", "replica.sleep.after.ms": "-1", "metrics.port": "0"}
    with raylog.start(root, brokers=3, config=config) as cluster:
        with raylog.Admin() as admin:
            admin.create_topic("t", partitions=PARTITIONS, replication_factor=3)
            admin.create_topic("w", partitions=1, replication_factor=3, config={"replica.doze.after.ms": -1})
        yield cluster


def test_replicas_of_an_idle_topic_are_stopped(cluster: Any, root: Path) -> None:
    wait_for(lambda: all_doze(root), "all replicas doze", 60)


def test_a_record_for_dozing_replicas_arrives_on_all(cluster: Any, root: Path) -> None:
    with raylog.Producer() as producer:
        for number in range(5):
            wait_for(lambda: all_doze(root), "all replicas doze", 60)
            sent = producer.send("t", b"v", partition=0).result(10)
            assert sent.offset == number


def noted_ends(root: Path, partition: int) -> set[tuple[str, str]]:
    """Return the recovery point and the watermark that each replica has noted on disk."""
    return {
        (
            (folder / RECOVERY_POINT).read_text().split()[1],
            (folder / HIGH_WATERMARK).read_text().split()[0],
        )
        for folder in root.glob(f"broker-*/**/t-{partition}")
    }


def test_nothing_is_left_to_be_noted_beside_the_next_record(cluster: Any, root: Path) -> None:
    wait_for(lambda: all_doze(root), "all replicas doze", 60)
    assert noted_ends(root, 0) == {("5", "5")}


def test_replicas_doze_again_and_keep_their_place_in_the_isr(cluster: Any, root: Path) -> None:
    wait_for(lambda: all_doze(root), "all replicas doze", 60)
    with raylog.Admin() as admin:
        assert [sorted(partition.isr) for partition in admin.describe_topic("t").partitions] == [[1, 2, 3]] * PARTITIONS


def test_dozes_outlast_heartbeats_and_sessions(cluster: Any, root: Path) -> None:
    """The session timeout is 2.5 s. On a busy machine heartbeats may be late, and have all speak for themselves."""
    pids = [pid for broker in (1, 2, 3) for pid in noted(root, broker)]
    wait_for(lambda: rest_for_long(root, pids), "no replica runs for 3 s", 200)
    assert [isr_of("t", partition) for partition in range(PARTITIONS)] == [[1, 2, 3]] * PARTITIONS


def test_status_and_reports_wake_none(cluster: Any, root: Path) -> None:
    def reports_and_runs() -> tuple[list[bool], bool]:
        wait_for(lambda: all_doze(root), "all replicas doze", 60)
        pids = [pid for broker in (1, 2, 3) for pid in noted(root, broker)]
        before = on_cpu(pids)
        dozing = [row["dozing"] for row in cluster.replicas() if row["topic"] == "t"]
        return dozing, on_cpu(pids) == before

    # One whose doze has just ended by itself would answer as awake.
    wait_for(lambda: reports_and_runs() == ([True] * 3 * PARTITIONS, True), "brokers answer for all of them", 60)
    rows = [row for row in cluster.replicas() if row["topic"] == "t"]
    assert {(row["partition"], row["broker"]) for row in rows} == {(p, b) for p in range(PARTITIONS) for b in (1, 2, 3)}
    assert sum(row["role"] == "leader" for row in rows) == PARTITIONS
    expected = [[broker, 1, PARTITIONS, 0] for broker in (1, 2, 3)]
    wait_for(lambda: cluster.status()["replica_counts"] == expected, "the status shows awake and dozing replicas", 30)


def test_a_consumer_that_waits_at_the_end_lets_replicas_doze(cluster: Any, root: Path) -> None:
    pids = [pid for broker in (1, 2, 3) for pid in noted(root, broker)]
    with raylog.Consumer("t", group_id=None, auto_offset_reset="latest") as consumer, raylog.Producer() as producer:
        places = [TopicPartition("t", partition) for partition in range(PARTITIONS)]
        assert set(consumer.end_offsets(places)) == set(places)

        def reads_nothing_and_all_rest() -> bool:
            assert consumer.poll(10) == {}
            return rest_for_long(root, pids)

        wait_for(reads_nothing_and_all_rest, "no replica runs for 3 s", 200)
        sent = producer.send("t", b"after the rest", partition=0).result(20)
        [record] = consumer.consume(1, timeout=5)
        assert (record.offset, record.value) == (sent.offset, b"after the rest")


def test_a_replica_that_a_user_stops_is_fenced(cluster: Any, root: Path) -> None:
    """As without dozing: the leader of the topic that never dozes, by SIGSTOP, which its broker has not sent."""
    leader = leader_of("w", 0)
    stopped = pid_of(cluster, "w", leader)
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_for(lambda: leader_of("w", 0) not in (leader, -1), "another replica leads", 30)
        wait_for(lambda: leader not in isr_of("w", 0), "the stopped one is out of sync", 30)
        assert state(stopped) == "T", "its broker does not continue it"
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_for(lambda: isr_of("w", 0) == [1, 2, 3], "it is in sync again", 60)


def test_a_user_who_stops_or_continues_dozing_replicas_does_no_harm(cluster: Any, root: Path) -> None:
    for number in (signal.SIGSTOP, signal.SIGCONT):
        wait_for(lambda: all_doze(root), "all replicas doze", 90)
        for broker in (1, 2, 3):
            for pid in noted(root, broker):
                os.kill(pid, number)
        with raylog.Producer() as producer:
            producer.send("t", b"v", partition=0).result(20)
    assert isr_of("t", 0) == [1, 2, 3]


def test_a_broker_that_hangs_takes_no_replica_along(cluster: Any, root: Path) -> None:
    wait_for(lambda: all_doze(root), "all replicas doze", 90)
    dozing, broker = noted(root, 2), broker_pid(2)
    before = on_cpu(dozing)
    os.kill(broker, signal.SIGSTOP)
    try:
        wait_for(lambda: on_cpu(dozing) > before, "the keeper continues its replicas", 30)
        with raylog.Producer() as producer:
            for partition in range(PARTITIONS):
                producer.send("t", b"v", partition=partition).result(20)
        time.sleep(4)  # longer than a session: they send their own heartbeats
        assert [isr_of("t", partition) for partition in range(PARTITIONS)] == [[1, 2, 3]] * PARTITIONS
    finally:
        os.kill(broker, signal.SIGCONT)


def test_the_death_of_a_broker_continues_its_replicas(cluster: Any, root: Path) -> None:
    wait_for(lambda: all_doze(root), "all replicas doze", 90)
    dozing = noted(root, 2)
    os.kill(broker_pid(2), signal.SIGKILL)
    wait_for(lambda: all(state(pid) not in ("T", "ended") for pid in dozing), "its replicas run", 30)


def test_a_dozing_replica_that_is_killed_comes_back(cluster: Any, root: Path) -> None:
    wait_for(lambda: all_doze(root), "all replicas doze under the new broker too", 90)
    killed = noted(root, 3)[0]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in noted(root, 3) and all_doze(root), "another process dozes in its place", 90)
    with raylog.Producer() as producer:
        for partition in range(PARTITIONS):
            producer.send("t", b"v", partition=partition).result(20)
