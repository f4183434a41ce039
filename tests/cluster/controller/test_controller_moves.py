"""The controller's node is lost: Ray starts the controller on another one, which needs no file of the first."""

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import raylog
from raylog.actors.naming import node_broker_name
from tests.cluster.ray_support import AWAKE, RayNodes, call_actor, kill, own_ray
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LIMIT_S = 10.0
"""For slow or busy machines; usual are a third of it and less."""
ROUNDS = 3
"""An odd number has a median that was measured."""
SERVES_AGAIN_S = 15.0
"""From the moment Ray knows of the loss: a process starts, reads the log, and gives up lost members."""


def when_known_as_dead(node_id: str) -> Callable[[], float]:
    """Watch for it in a thread; the returned function waits for the moment and returns it."""
    import ray

    known: list[float] = []

    def alive() -> bool:
        return any(node["Alive"] for node in ray.nodes() if node["NodeID"] == node_id)  # type: ignore[no-untyped-call]

    def watch() -> None:
        wait_for(lambda: not alive(), "Ray knows that the node is lost")
        known.append(time.monotonic())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()

    def moment() -> float:
        watching.join(60)
        return known[0]

    return moment


def lose(nodes: RayNodes, lost: Any, running: list[int]) -> float:
    """Kill a node and its processes, which would otherwise outlive it for a while; returns when."""
    begun = time.monotonic()
    lost.kill_raylet(check_alive=False)
    for pid in running:
        with suppress(ProcessLookupError):
            kill(pid)
    nodes.remove(lost)
    return begun


def produce_over_the_loss(cluster: Any, nodes: RayNodes, others: list[Any]) -> float:
    """Lose the controller's node; returns seconds from Ray's detection until its partitions accept records."""
    home = call_actor("controller", "node_id")
    dead = next(broker["broker"] for broker in cluster.status()["brokers"] if broker["node_id"] == home)
    with raylog.Admin() as admin, raylog.Producer(delivery_timeout_ms=60_000) as producer:
        admin.create_topic("t", partitions=3, replication_factor=3)
        wait_for(lambda: all(len(topic["isr"]) == 3 for topic in cluster.status()["topics"]["t"]), "all are in sync")
        led = [topic["partition"] for topic in cluster.status()["topics"]["t"] if topic["leader"] == dead]
        assert led, "the lost broker leads nothing"
        for partition in led:
            producer.send("t", b"before", partition=partition).result(30)
        running = [int(replica["pid"]) for replica in cluster.replicas() if replica["broker"] == dead]
        running += [call_actor("controller", "pid"), call_actor(node_broker_name(home), "pid")]
        known = when_known_as_dead(home)
        begun = lose(nodes, next(node for node in others if node.node_id == home), running)
        for partition in led:
            producer.send("t", b"after", partition=partition).result(60)
        served = time.monotonic()
        print(f"records are taken {served - begun:.1f} s after the loss; Ray knew of it after {known() - begun:.1f} s")
        admin.create_topic("later", partitions=1, replication_factor=2)
    assert call_actor("controller", "node_id") != home
    assert all(topic["leader"] != dead for topic in cluster.status()["topics"]["t"])
    return served - known()


def test_partitions_are_led_again_after_the_controllers_node_is_lost(tmp_path: Path) -> None:
    with RayNodes(tmp_path) as nodes:
        nodes.add("head", is_for_brokers=False)
        others = [nodes.add(name) for name in ("first", "second", "third")]
        cluster = nodes.start("started-here")
        assert produce_over_the_loss(cluster, nodes, others) < SERVES_AGAIN_S
        cluster.stop()


def test_elections_are_possible_soon_after_the_controller_was_killed(tmp_path: Path) -> None:
    """First the controller alone is killed, then with it the leader of a partition; three times each."""
    with own_ray():
        alone, with_leader, served = kill_and_wait(raylog.start(tmp_path / "data", brokers=3, config=AWAKE))
    for what, times in (
        ("the controller killed, all known again", alone),
        ("and a leader with it, another elected", with_leader),
        ("a record written", served),
    ):
        print(f"{what}: median {statistics.median(times):.2f} s of {[round(time, 2) for time in times]}")
    assert statistics.median(alone) < LIMIT_S
    assert statistics.median(with_leader) < 2 * LIMIT_S


def kill_and_wait(cluster: Any) -> tuple[list[float], list[float], list[float]]:
    """Return seconds until the next controller has all registrations, a killed leader is replaced, a write succeeds."""
    alone: list[float] = []
    with_leader: list[float] = []
    served: list[float] = []
    with (
        cluster,
        raylog.Producer(delivery_timeout_ms=60_000) as producer,
    ):
        with raylog.Admin() as admin:
            admin.create_topic("t", partitions=1, replication_factor=3)

        def partition() -> dict[str, Any]:
            found: dict[str, Any] = cluster.status()["topics"]["t"][0]
            return found

        def whole() -> bool:
            return len(partition()["isr"]) == 3 == len(partition()["online"])

        def controller_back(before: int) -> bool:
            return bool(call_actor("controller", "pid") != before)

        for _ in range(ROUNDS):
            wait_for(whole, "all replicas are in sync")
            pid = call_actor("controller", "pid")
            begun = kill(pid)
            wait_for(lambda pid=pid: controller_back(pid) and whole(), "the next incarnation knows all brokers")  # type: ignore[misc]
            alone.append(time.monotonic() - begun)
        for number in range(ROUNDS):
            wait_for(whole, "all replicas are in sync")
            leader = partition()["leader"]
            epoch = partition()["leader_epoch"]
            leading = next(
                replica for replica in cluster.replicas() if (replica["topic"], replica["broker"]) == ("t", leader)
            )
            pid = call_actor("controller", "pid")
            begun = kill(pid)
            kill(leading["pid"])

            def watch(pid: int = pid, epoch: int = epoch, begun: float = begun) -> None:
                wait_for(lambda: controller_back(pid) and partition()["leader_epoch"] > epoch, "a new leader")
                with_leader.append(time.monotonic() - begun)

            watching = threading.Thread(target=watch)
            watching.start()
            producer.send("t", b"%d" % number, partition=0).result(60)
            served.append(time.monotonic() - begun)
            watching.join(60)
    return alone, with_leader, served
