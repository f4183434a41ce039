"""Workers made by fork in a real Ray that Raylog started; one cluster for all tests, in the order given here."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import raylog
from raylog.launch import forking
from raylog.launch.cluster import Cluster
from tests.cluster.ray_support import AWAKE, Wire, alive, kill, ray_folder
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux only"),
]

DRIVER = """
import json, sys, time
import raylog
from raylog.launch import forking
with raylog.start(sys.argv[1], address="local") as cluster, raylog.Admin() as admin:
    admin.create_topic("t", config={"replica.sleep.after.ms": "-1"})
    rows = cluster.replicas()
    print(json.dumps([forking._servers[0][0].pid] + [row["pid"] for row in rows]), flush=True)
    time.sleep(300)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with ray_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with raylog.start(tmp_path_factory.mktemp("data"), brokers=3, config=AWAKE, address="local") as running:
        yield running


@pytest.fixture(scope="module")
def wire(cluster: Cluster) -> Iterator[Wire]:
    talk = Wire(cluster.secret())
    yield talk
    talk.close()


def server() -> subprocess.Popen[bytes]:
    return forking._servers[-1][0]


def create(cluster: Cluster, topic: str) -> None:
    with raylog.Admin(bootstrap=cluster.bootstrap(), secret=cluster.secret()) as admin:
        admin.create_topic(topic, partitions=2, replication_factor=3, timeout_s=60)


def pids(cluster: Cluster, topic: str) -> list[int]:
    return [replica["pid"] for replica in cluster.replicas() if replica["topic"] == topic]


def test_replicas_are_forked_and_share_what_was_imported(cluster: Cluster, wire: Wire) -> None:
    create(cluster, "t")
    wire.wait_whole("t", 2)
    made = [psutil.Process(pid) for pid in pids(cluster, "t")]
    assert len(set(made)) == 6
    assert {worker.ppid() for worker in made} == {server().pid}
    shown = sorted(worker.cmdline()[0] for worker in made)
    assert all(title.startswith("ray::Replica ") for title in shown), shown
    assert len(set(shown)) == len(shown), "each process shows which replica it is"
    assert max(worker.memory_full_info().uss for worker in made) < 35e6
    assert wire.produce("t", 0, b"kept") == 0


def test_tasks_of_users_are_forked_too_and_do_not_notice(cluster: Cluster) -> None:
    import ray

    class Anything:
        def about(self) -> dict[str, Any]:
            import random
            import subprocess

            context = ray.get_runtime_context()
            return {
                "worker": context.get_worker_id(), "actor": context.get_actor_id(), "random": random.random(),
                "child": subprocess.run(["true"], check=False).returncode, "group": os.getpgid(0), "pid": os.getpid(),
                "files": [os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)],
            }  # fmt: skip

    actor: Any = ray.remote(num_cpus=0)(Anything)
    made = [actor.remote() for _ in range(3)]
    reports: list[dict[str, Any]] = ray.get([worker.about.remote() for worker in made], timeout=60)
    for what in ("worker", "actor", "random", "pid"):
        assert len({item[what] for item in reports}) == 3
    for item in reports:
        assert (item["child"], item["group"]) == (0, item["pid"])
        assert all(item["worker"] in file for file in item["files"])
    for worker in made:
        ray.kill(worker)
    wait_for(lambda: not any(alive(item["pid"]) for item in reports), "the actors have ended")


def test_a_killed_replica_is_forked_again_and_leaves_no_zombie(cluster: Cluster, wire: Wire) -> None:
    before = pids(cluster, "t")
    for pid in before:
        kill(pid)
    wait_for(lambda: len(set(pids(cluster, "t")) - set(before)) == 6, "all replicas have come back")
    wire.wait_whole("t", 2)
    assert wire.end_offset("t", 0) == 1
    assert {psutil.Process(pid).ppid() for pid in pids(cluster, "t")} == {server().pid}
    statuses = [child.status() for child in psutil.Process(server().pid).children()]
    assert psutil.STATUS_ZOMBIE not in statuses


def test_without_the_fork_server_replicas_go_on_and_new_ones_start(cluster: Cluster, wire: Wire) -> None:
    before = pids(cluster, "t")
    dozing = [psutil.Process(pid) for pid in before]
    wait_for(lambda: {replica.status() for replica in dozing} == {psutil.STATUS_STOPPED}, "all replicas doze")
    kill(server().pid)
    server().wait(10)
    create(cluster, "later")
    wire.wait_whole("later", 2)
    assert wire.produce("later", 0, b"x") == 0
    assert pids(cluster, "t") == before
    assert wire.produce("t", 0, b"x") == 1


def test_stopping_leaves_no_process_and_no_folder(home: Path, tmp_path: Path, cluster: Cluster) -> None:
    wire_pids = pids(cluster, "t")
    cluster.stop()
    wait_for(lambda: not any(alive(pid) for pid in wire_pids), "replicas that have lost their fork server end too")
    others = set(psutil.Process().children(recursive=True))  # the tests' own
    with raylog.start(tmp_path, address="local") as another:
        with raylog.Admin(bootstrap=another.bootstrap(), secret=another.secret()) as admin:
            admin.create_topic("t")
        family = [child for child in psutil.Process().children(recursive=True) if child not in others]
        assert server().pid in {item.pid for item in family}
    assert psutil.wait_procs(family, 30)[1] == []
    assert not list(home.glob("raylog-*"))


def test_all_processes_end_when_the_starter_of_ray_is_killed(home: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
        assert driver.stdout is not None
        try:
            known = json.loads(driver.stdout.readline())
            assert all(alive(pid) for pid in known)
        finally:
            driver.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in known), "fork server and replicas have ended")
