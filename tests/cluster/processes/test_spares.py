"""Spare replicas in a real Ray: topics made of waiting processes, which are killed, stopped and restarted.

One cluster of three brokers with two spares each serves all tests, in file order.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.naming import SPARE_PREFIX, spare_prefix
from raylog.actors.processes.spare_roles import ROLES_FOLDER, role_file, write_role
from tests.cluster.ray_support import AWAKE, Wire, actor_names, alive, call_actor, kill
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPARES = 2
TOPIC, PARTITIONS = "t", 2


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def wire(shared_ray: None, root: Path) -> Iterator[Wire]:
    import raylog

    cluster = raylog.start(root, brokers=3, config={**AWAKE, "replica.spares": str(SPARES)})
    talk = Wire(cluster.secret())
    yield talk
    talk.close()
    cluster.stop()


def spares(broker: int | None = None) -> list[str]:
    prefix = SPARE_PREFIX if broker is None else spare_prefix(broker)
    return [name for name in actor_names() if name.startswith(prefix)]


def pids(names: list[str]) -> set[int]:
    return {call_actor(name, "status")["pid"] for name in names}


def wait_for_spares() -> None:
    wait_for(lambda: all(len(spares(broker)) == SPARES for broker in (1, 2, 3)), "each broker has its spares")
    pids(spares())


def roles(root: Path) -> list[Path]:
    return list(root.glob(f"broker-*/{ROLES_FOLDER}/*"))


def replicas(topic: str = TOPIC) -> list[str]:
    return [name for name in actor_names() if name.startswith(f"replica:{topic}-")]


def create(wire: Wire, topic: str) -> None:
    arguments: list[Any] = [topic, PARTITIONS, 3, None, {}, False, 10_000]
    wire.run(wire.call(wire.broker_endpoint(), "create_topic", arguments))
    wire.wait_whole(topic, PARTITIONS)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_topic_is_made_of_spares_without_a_new_process(wire: Wire, root: Path) -> None:
    wait_for_spares()
    waiting = pids(spares())
    wait_for(lambda: all(map(is_stopped, waiting)), "spares doze")
    assert len(waiting) == 3 * SPARES
    create(wire, TOPIC)
    assert pids(replicas()) == waiting
    assert len(roles(root)) == len(replicas()) == 6


def test_what_was_used_is_replaced(wire: Wire) -> None:
    wait_for_spares()
    assert not pids(spares()) & pids(replicas())


def test_a_killed_leader_that_was_a_spare_comes_back_as_the_same_replica(wire: Wire) -> None:
    wire.produce(TOPIC, 0, b"before")
    _, leader, epoch, *_ = wire.look(TOPIC, 0)
    [name] = [name for name in replicas() if name.startswith(f"replica:{TOPIC}-0:broker-{leader}:")]
    others = set(replicas()) - {name}
    before, pid = pids(sorted(others)), call_actor(name, "status")["pid"]
    began = kill(pid)
    print(f"the next leader after {wire.leader_after(TOPIC, 0, epoch, began):.2f} s")
    wire.produce(TOPIC, 0, b"after")
    wire.wait_whole(TOPIC, PARTITIONS)
    status = call_actor(name, "status")
    assert (status["topic"], status["partition"], status["broker"]) == (TOPIC, 0, leader)
    assert status["pid"] != pid
    assert pids(sorted(others)) == before
    assert wire.end_offset(TOPIC, 0) == 2


def test_a_killed_spare_is_a_spare_again(wire: Wire) -> None:
    wait_for_spares()
    name = next(name for name in spares() if not call_actor(name, "role"))  # a late answer is no role in the list
    pid = call_actor(name, "status")["pid"]
    kill(pid)
    wait_for(lambda: call_actor(name, "status")["pid"] != pid, "Ray starts it again")
    assert call_actor(name, "role") == ""


def test_a_broker_that_ends_before_it_assigns_a_spare_leaves_nothing(wire: Wire, root: Path) -> None:
    """The note exists and the spare does not know of it; the topic was deleted meanwhile."""
    wait_for_spares()
    served = pids(replicas())
    name = spares(2)[0]
    lost = ReplicaSpec(
        topic_id="0" * 16,
        topic="lost",
        partition=0,
        broker=2,
        data_directory=root / "broker-2",
        secret=wire.secret,
        replication_factor=1,
        topic_config={},
        cluster_config={},
    )
    note = role_file(root / "broker-2", name)
    write_role(note, lost)
    pid, unused = call_actor("broker-2", "pid"), call_actor(name, "status")["pid"]
    kill(pid)
    wait_for(lambda: call_actor("broker-2", "pid") != pid, "Ray starts the broker again")
    wait_for(lambda: not note.exists() and not alive(unused), "the note goes, and the process with it")
    assert pids(replicas()) == served, "what is in use stays as it is"
    wait_for_spares()
    assert name not in spares()


def test_a_deleted_topic_ends_its_processes_and_their_notes(wire: Wire, root: Path) -> None:
    before = set(roles(root))
    create(wire, "short-lived")
    used = pids(replicas("short-lived"))
    wire.run(wire.call(wire.broker_endpoint(), "delete_topic", ["short-lived"]))
    wait_for(lambda: not replicas("short-lived") and set(roles(root)) == before, "its actors and notes are removed")
    wait_for(lambda: not any(alive(pid) for pid in used), "its processes have ended")


def test_stop_leaves_no_process_and_start_brings_the_replicas_back(wire: Wire, root: Path) -> None:
    import raylog

    wait_for_spares()
    all_pids = pids([name for name in actor_names() if name.startswith("replica:")])
    former_roles = set(roles(root))
    raylog.connect().stop()
    assert actor_names() == []
    wait_for(lambda: not any(alive(pid) for pid in all_pids), "no process is left", 10)
    assert len(list(root.glob(f"broker-*/{TOPIC}-*/clean-shutdown"))) == 6, "every log was closed cleanly"
    rows = raylog.start(root).status
    wait_for(lambda: not any(row["asleep"] for row in rows()["topics"][TOPIC]), "what never sleeps wakes again")
    wire.wait_whole(TOPIC, PARTITIONS)
    assert wire.end_offset(TOPIC, 0) == 2
    wait_for(lambda: not former_roles & set(roles(root)), "notes about former processes are removed")
    wait_for_spares()  # the metadata keeps the setting


def test_without_the_setting_there_are_no_spares(wire: Wire, root: Path) -> None:
    import raylog

    raylog.connect().stop()
    raylog.start(root, config={"replica.spares": "0"})
    wire.wait_whole(TOPIC, PARTITIONS)
    create(wire, "without-spares")
    assert not roles(root), "each replica has a process of its own"
    assert not spares()
