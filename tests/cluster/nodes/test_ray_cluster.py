"""Raylog in a real Ray: processes that are killed, restarts in place, start and stop.

One cluster of three brokers serves most tests of this module, in file order; each leaves it whole.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.settings import INITIAL_LEADER_WAIT_MS
from raylog.base.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    DataDirectoryError,
    NotCoordinator,
    RaylogError,
    StartFailed,
)
from raylog.rpc.auth.secret_files import SecretFiles
from tests.cluster.ray_support import (
    AWAKE,
    Wire,
    actor_names,
    alive,
    call_actor,
    kill,
    mapped,
    own_ray,
    private_bytes,
    ray_folder,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TOPIC, PARTITIONS = "t", 3
KILLS = 6
"""The leader of each partition twice."""
RECOVERY_S = 90.0


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def wire(ray_here: None, root: Path) -> Iterator[Wire]:
    """A cluster of three brokers with a topic of three partitions and three replicas each."""
    import raylog

    cluster = raylog.start(root, brokers=3, config=AWAKE)
    talk = Wire(cluster.secret())
    began = time.monotonic()
    talk.run(talk.call(talk.broker_endpoint(), "create_topic", [TOPIC, PARTITIONS, 3, None, {}, False, 10_000]))
    talk.wait_whole(TOPIC, PARTITIONS, 120)
    talk.came_up_s = time.monotonic() - began
    yield talk
    talk.close()
    cluster.stop()


def replicas(topic: str = TOPIC) -> list[dict[str, Any]]:
    """Return the status of every replica of a topic."""
    return [call_actor(name, "status") for name in actor_names() if name.startswith(f"replica:{topic}-")]


def replica(partition: int, broker: int, topic: str = TOPIC) -> dict[str, Any]:
    return next(row for row in replicas(topic) if (row["partition"], row["broker"]) == (partition, broker))


def test_nine_replicas_run_each_in_a_process_of_its_own(wire: Wire) -> None:
    found = replicas()
    assert len(found) == len({entry["pid"] for entry in found}) == 9
    assert sorted({(entry["partition"], entry["broker"]) for entry in found}) == [
        (partition, broker) for partition in range(3) for broker in (1, 2, 3)
    ]
    leaders = sorted(wire.look(TOPIC, partition)[1] for partition in range(PARTITIONS))
    print(f"nine replicas in sync after {wire.came_up_s:.1f} s, leaders {leaders}")
    if wire.came_up_s * 1000 < INITIAL_LEADER_WAIT_MS:  # else the machine was too busy to wait for the preferred ones
        assert leaders == [1, 2, 3], "leaders are balanced although the actors came up one after the other"


def test_ray_keeps_no_secret(wire: Wire, root: Path) -> None:
    """The secret is not in Ray's control store, which has the actors' specifications, nor in logs or command lines."""
    import ray

    found = SecretFiles(root)()
    assert wire.secret in found.client, "clients get the clients' secret from Ray"
    values = [*found.cluster, *found.client]
    needles = [*values, *(value.hex().encode() for value in values)]
    node: Any = ray._private.worker._global_node
    (store,) = node.all_processes["gcs_server"]
    assert b"raylog" in memory_of(store.process.pid), "what is looked at is the store's memory"
    assert not holds(memory_of(store.process.pid), needles)
    logs = [path for path in Path(node.get_session_dir_path()).rglob("*") if path.is_file() and not path.is_symlink()]
    assert logs
    for path in logs:
        assert not holds(path.read_bytes(), needles), path.name
    for name in ("cmdline", "environ"):
        for process in Path("/proc").glob(f"[0-9]*/{name}"):
            with suppress(OSError):
                assert not holds(process.read_bytes(), needles), process


def memory_of(pid: int) -> bytes:
    """Return what a process has written into its memory."""
    parts = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *rest = line.split()
            if not rights.startswith("rw") or (rest and rest[-1].startswith("[v")):
                continue
            begin, end = (int(item, 16) for item in place.split("-"))
            with suppress(OSError):
                memory.seek(begin)
                parts.append(memory.read(end - begin))
    return b"".join(parts)


def holds(data: bytes, needles: list[bytes]) -> bool:
    return any(needle in data for needle in needles)


def test_a_replica_that_ended_since_it_was_listed_is_left_out(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    import raylog

    unknown = "replica:gone-0:broker-1:00000000"
    monkeypatch.setattr("raylog.launch.replica_reports.actor_names", lambda: [*actor_names(), unknown])
    assert sum(replica["topic"] == TOPIC for replica in raylog.connect().replicas()) == 9


def test_an_idle_replica_is_small_and_imports_no_numeric_libraries(wire: Wire) -> None:
    for item in replicas():
        files = mapped(item["pid"])
        for library in ("numpy", "pandas", "pyarrow", "pydantic_core"):
            assert f"/{library}/" not in files, f"replica {item['pid']} has loaded {library}"
        assert private_bytes(item["pid"]) < 80 * 2**20
    print("private MB of each replica:", sorted(private_bytes(replica["pid"]) >> 20 for replica in replicas()))


def test_a_second_start_joins_and_another_directory_is_refused(wire: Wire, root: Path, tmp_path: Path) -> None:
    import raylog

    before = {replica["pid"] for replica in replicas()}
    again = raylog.start(root)
    assert {broker["broker"] for broker in again.status()["brokers"] if broker["online"]} == {1, 2, 3}
    assert {replica["pid"] for replica in replicas()} == before
    with pytest.raises(StartFailed, match="runs in this Ray cluster already"):
        raylog.start(tmp_path / "other")
    with pytest.raises(StartFailed, match="holds the data of 3 brokers"):
        raylog.start(root, brokers=1)
    assert len(raylog.connect().replicas()) == 9


def test_a_directory_in_use_names_the_process_that_uses_it(wire: Wire, root: Path) -> None:
    """A second Ray, in a process of its own, is refused with the directory's owner."""
    program = (
        "import os, sys, json, tempfile\n"
        "os.environ['RAY_TMPDIR'] = sys.argv[2]\n"
        "import ray, raylog\n"
        "ray.init(address='local', include_dashboard=False, log_to_driver=False, num_cpus=1,"
        " object_store_memory=80 * 2**20)\n"
        "try:\n"
        "    raylog.start(sys.argv[1], timeout_s=60)\n"
        "    result = 'it started'\n"
        "except raylog.RaylogError as error:\n"
        "    result = f'{type(error).__name__}: {error}'\n"
        "ray.shutdown()\n"
        "print(json.dumps(result))\n"
    )
    with ray_folder() as home:
        command = [sys.executable, "-c", program, str(root), str(home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result.startswith(DataDirectoryError.__name__), result
    assert str(call_actor("broker-1", "pid")) in result


def test_a_killed_leader_is_replaced_within_milliseconds_and_returns(wire: Wire) -> None:
    times = []
    for number in range(KILLS):
        partition = number % PARTITIONS
        expected = wire.produce(TOPIC, partition, b"%d" % number) + 1
        _, leader, epoch, *_ = wire.look(TOPIC, partition)
        pid = replica(partition, leader)["pid"]
        took = wire.leader_after(TOPIC, partition, epoch, kill(pid))
        times.append(took * 1000)
        assert took < 5
        assert wire.produce(TOPIC, partition, b"after") == expected
        wire.wait_whole(TOPIC, PARTITIONS)
        back = replica(partition, leader)
        assert (back["role"], back["pid"] != pid) == ("follower", True), "Ray restarted it in place"
    print(f"new leader after SIGKILL, ms: {[round(time, 1) for time in times]}, median {statistics.median(times):.1f}")


def test_a_stopped_leader_is_replaced_while_its_broker_runs_and_rejoins(wire: Wire) -> None:
    """Of a topic that never dozes: its broker vouches for a process that it has stopped itself."""
    topic = "stopped"
    config = {"replica.doze.after.ms": "-1"}
    wire.run(wire.call(wire.broker_endpoint(), "create_topic", [topic, 1, 3, None, config, False, 10_000]))
    wire.wait_whole(topic, 1)
    _, leader, epoch, *_ = wire.look(topic, 0)
    pid = replica(0, leader, topic)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wire.leader_after(topic, 0, epoch, time.monotonic())
        wire.produce(topic, 0, b"without it")
    finally:
        os.kill(pid, signal.SIGCONT)
    wire.wait_whole(topic, 1)
    back = replica(0, leader, topic)
    assert (back["role"], back["pid"]) == ("follower", pid)
    wire.run(wire.call(wire.broker_endpoint(), "delete_topic", [topic]))


def test_a_killed_controller_interrupts_no_client_and_comes_back(wire: Wire) -> None:
    before = {
        (replica["partition"], replica["broker"]): (replica["incarnation"], replica["pid"]) for replica in replicas()
    }
    epochs = [wire.look(TOPIC, partition)[2] for partition in range(PARTITIONS)]
    pid = call_actor("controller", "pid")
    kill(pid)
    offsets = [wire.produce(TOPIC, number % PARTITIONS, b"without a controller") for number in range(30)]
    assert len(offsets) == 30
    wait_for(lambda: call_actor("controller", "pid") != pid, "Ray restarts the controller", RECOVERY_S)
    wait_for(
        lambda: all(replica["controller_connected"] for replica in replicas()), "replicas register again", RECOVERY_S
    )
    assert {
        (replica["partition"], replica["broker"]): (replica["incarnation"], replica["pid"]) for replica in replicas()
    } == before
    assert [wire.look(TOPIC, partition)[2] for partition in range(PARTITIONS)] == epochs
    create_and_delete(wire, "after-the-controller")


def create_and_delete(wire: Wire, topic: str) -> None:
    """Check that controller and brokers work together again."""

    def created() -> bool:
        try:
            wire.run(wire.call(wire.broker_endpoint(), "create_topic", [topic, 1, 3, None, {}, False, 5000]))
        except (RaylogError, OSError) as error:
            return "exists" in str(error)
        return True

    wait_for(created, f"topic {topic} is created", RECOVERY_S)
    wire.wait_whole(topic, 1)
    wire.produce(topic, 0, b"works")
    wire.run(wire.call(wire.broker_endpoint(), "delete_topic", [topic]))
    wait_for(lambda: not [name for name in actor_names() if topic in name], f"the actors of {topic} end", RECOVERY_S)


def test_deleted_topics_leave_no_folder(wire: Wire, root: Path) -> None:
    create_and_delete(wire, "short-lived")
    wait_for(lambda: not list(root.glob("broker-*/*short-lived*")), "folders and locks vanish", RECOVERY_S)


def move(wire: Wire, root: Path, *target: int) -> None:
    """Move partition 0 of ``moving`` and wait until the old replica's files are deleted."""
    change = [[["moving", 0, list(target)]], 100_000_000]
    wire.run(wire.call(wire.broker_endpoint(), "alter_partition_reassignments", change))
    wait_for(lambda: wire.look("moving", 0)[5] == list(target), "the partition has moved", RECOVERY_S)
    wire.wait_whole("moving", 1)
    [unknown] = {1, 2, 3} - set(target)
    left = f"replica:moving-0:broker-{unknown}"
    wait_for(lambda: not [name for name in actor_names() if name.startswith(left)], "the removed process ends")
    wait_for(lambda: not list(root.glob(f"broker-{unknown}/moving-*")), "its folder goes")


def test_a_partition_moves_there_and_back_and_leaves_nothing_behind(wire: Wire, root: Path) -> None:
    wire.run(wire.call(wire.broker_endpoint(), "create_topic", ["moving", -1, -1, [[1, 2]], {}, False, 10_000]))
    wire.wait_whole("moving", 1)
    first = wire.produce("moving", 0, b"a")
    move(wire, root, 3, 2)
    move(wire, root, 1, 2)
    assert wire.produce("moving", 0, b"b") == first + 1
    assert wire.end_offset("moving", 0) == first + 2
    wire.run(wire.call(wire.broker_endpoint(), "delete_topic", ["moving"]))
    wait_for(lambda: not list(root.glob("broker-*/moving-*")), "the topic is deleted")


def test_a_killed_broker_disturbs_no_replica_and_comes_back(wire: Wire) -> None:
    before = {replica["pid"] for replica in replicas()}
    pid = call_actor("broker-2", "pid")
    kill(pid)
    for number in range(10):
        wire.produce(TOPIC, number % PARTITIONS, b"without a broker")
    wait_for(lambda: call_actor("broker-2", "pid") != pid, "Ray restarts the broker", RECOVERY_S)
    assert {replica["pid"] for replica in replicas()} == before
    two = Wire(wire.secret.hex(), broker=2)
    try:
        two.wait_whole(TOPIC, PARTITIONS)
        create_and_delete(two, "after-the-broker")
    finally:
        two.close()


def commit(wire: Wire, offset: int | None) -> int:
    """Commit an offset of a group without members (None: only fetch); returns the committed offset then."""
    topic_id = wire.run(wire.call(wire.broker_endpoint(), "metadata", [[TOPIC]])).args[3][0][1]

    async def attempt() -> int:
        endpoint = wire.broker_endpoint()
        _, host, port = (await wire.call(endpoint, "find_coordinator", ["group", "g"])).args
        if offset is not None:
            rows = [[topic_id, TOPIC, 0, offset, 1, ""]]
            (answer,) = (await wire.call((host, port), "offset_commit", ["g", -1, "", rows])).args
            assert answer[2] == 0
        ((_, _, _, found, _, _),) = (await wire.call((host, port), "offset_fetch", ["g", [[topic_id, TOPIC, 0]]])).args
        return int(found)

    deadline = time.monotonic() + 60
    while True:
        try:
            return wire.run(attempt())
        except (CoordinatorNotAvailable, CoordinatorLoadInProgress, NotCoordinator, RaylogError, OSError) as not_yet:
            if time.monotonic() >= deadline:
                raise AssertionError("no coordinator within 60 s") from not_yet
            time.sleep(0.05)


def test_a_killed_group_coordinator_comes_back_with_all_offsets(wire: Wire) -> None:
    for number in range(3):
        assert commit(wire, 10 + number) == 10 + number
        pid = call_actor("group-coordinator-0", "pid")
        began = kill(pid)
        wait_for(lambda pid=pid: call_actor("group-coordinator-0", "pid") != pid, "it is restarted")  # type: ignore[misc]
        assert commit(wire, None) == 10 + number
        print(f"coordinator back with its offsets after {time.monotonic() - began:.2f} s")


def wait_for_new_lives(pids: list[int]) -> None:
    """Wait until every actor runs in another process, and all nine replicas are registered at the controller."""

    def ready() -> bool:
        found = replicas()
        names = [name for name in actor_names() if not name.startswith("replica:")]
        living = {entry["pid"] for entry in found} | {call_actor(name, "pid", RECOVERY_S) for name in names}
        return len(found) == 9 and not living & set(pids) and all(entry["controller_connected"] for entry in found)

    wait_for(ready, "all actors run again and are registered", 90)


def test_everything_at_once_is_killed_and_comes_back_without_help(wire: Wire) -> None:
    ends = [wire.produce(TOPIC, partition, b"last before") + 1 for partition in range(PARTITIONS)]
    committed = commit(wire, 99)
    pids = [call_actor(name, "pid") for name in actor_names() if not name.startswith("replica:")]
    pids += [call_actor(name, "status")["pid"] for name in actor_names() if name.startswith("replica:")]
    for pid in pids:
        kill(pid)
    wait_for(lambda: not any(alive(pid) for pid in pids), "they are dead")
    wait_for_new_lives(pids)
    wire.wait_whole(TOPIC, PARTITIONS)
    assert [wire.end_offset(TOPIC, partition) for partition in range(PARTITIONS)] == ends
    assert commit(wire, None) == committed == 99
    create_and_delete(wire, "after-all")


def test_stop_leaves_nothing_and_start_brings_everything_back(wire: Wire, root: Path) -> None:
    import raylog

    ends = [wire.produce(TOPIC, partition, b"last before the stop") + 1 for partition in range(PARTITIONS)]
    committed = commit(wire, 123)
    pids = [call_actor(name, "status")["pid"] for name in actor_names() if name.startswith("replica:")]
    pids += [call_actor(name, "pid") for name in actor_names() if not name.startswith("replica:")]
    raylog.connect().stop()
    assert actor_names() == []
    wait_for(lambda: not any(alive(pid) for pid in pids), "no process is left", 10)
    assert len(list(root.glob("broker-*/t-*/clean-shutdown"))) == 9, "every log was closed cleanly"
    raylog.start(root)
    wait_for_new_lives(pids)
    wire.wait_whole(TOPIC, PARTITIONS)
    assert [wire.end_offset(TOPIC, partition) for partition in range(PARTITIONS)] == ends
    assert commit(wire, None) == committed == 123


def test_a_start_that_cannot_succeed_says_why_and_leaves_nothing(ray_here: None, wire: Wire, root: Path) -> None:
    import raylog

    raylog.connect().stop()
    elsewhere = root.with_name(f"{root.name}-other")
    shutil.copytree(root, elsewhere)
    (elsewhere / "cluster-id").write_text("f" * 64)
    with pytest.raises(DataDirectoryError, match=r"cluster\.id"):
        raylog.start(elsewhere)
    assert actor_names() == []
    for copy in elsewhere.glob("broker-*/metadata"):
        shutil.rmtree(copy)
    with pytest.raises(DataDirectoryError, match="metadata log"):
        raylog.start(elsewhere)
    for copy in root.glob("broker-*/metadata"):
        shutil.copytree(copy, elsewhere / copy.relative_to(root))
    for meta in elsewhere.glob("broker-*/meta.properties"):
        meta.unlink()
    with pytest.raises(StartFailed, match="metadata of cluster"):
        raylog.start(elsewhere)
    assert actor_names() == []
    raylog.start(root)
    wire.wait_whole(TOPIC, PARTITIONS)


def test_a_lost_partition_blocks_neither_the_others_nor_the_operator(ray_here: None, wire: Wire, root: Path) -> None:
    import raylog

    wire.run(wire.call(wire.broker_endpoint(), "create_topic", ["alone", 1, 1, [[2]], {}, False, 10_000]))
    wire.wait_whole("alone", 1)
    wire.produce("alone", 0, b"on one disk only")
    raylog.connect().stop()
    shutil.rmtree(root / "broker-2" / "alone-0")
    raylog.start(root)
    wire.wait_whole(TOPIC, PARTITIONS)

    def lost() -> object:
        return wire.run(wire.call(wire.broker_endpoint(), "describe_cluster", [])).args["lost_logs"]

    # A stop puts the partition to sleep, and a start does not wait until it wakes, which shows that its log is lost.
    wait_for(lambda: lost() == [["alone-0", 2]], "the lost log is noticed")
    wait_for(lambda: wire.look("alone", 0)[1] == -1, "no replica without its records leads")
    give_up = {"unclean.leader.election.enable": "true"}
    wire.run(wire.call(wire.broker_endpoint(), "alter_topic_config", ["alone", give_up, []]))
    wire.wait_whole("alone", 1)
    assert wire.produce("alone", 0, b"from the start") == 0
