"""Three processes without Ray go through a day: restarts, moves, a lost node, a full stop, a new secret.

They were given `bootstrap=` once. Nothing is lost, nothing is stored twice, and they use as much at the end as before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import raylog
from raylog.rpc.auth.secret_files import CLIENT_FILE, NEW_SECRET_BYTES, read_values, write_values
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.ray_support import RayNodes, call_actor, kill, kill_leaders, online
from tests.cluster.service.day import PARTITIONS, SERVICES, Day
from tests.cluster.service.programs import JOBS, ORDERS
from tests.spark.whole_cluster import WholeCluster
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster]

NODES: Final = ("1", "2", "3")
CONFIG: Final = {"group.initial.rebalance.delay.ms": "100", "replica.spares": "0", "metrics.port": "0"}
REPLICAS: Final = 2


def create(admin: raylog.Admin) -> None:
    for topic in (ORDERS, JOBS):
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS, config={"min.insync.replicas": 1})


def is_whole(status: dict[str, Any]) -> bool:
    """Whether all brokers are online, and all replicas in sync."""
    rows = [row for rows in status["topics"].values() for row in rows]
    return all(broker["online"] for broker in status["brokers"]) and all(
        len(row["isr"]) == len(row["replicas"]) for row in rows
    )


def move_partitions(admin: raylog.Admin) -> None:
    """Each replica of each partition goes to the next broker."""
    wanted: dict[tuple[str, int], list[int]] = {
        (topic, row.partition): [broker % 3 + 1 for broker in row.replicas]
        for topic in (ORDERS, JOBS)
        for row in admin.describe_topic(topic).partitions
    }
    admin.alter_partition_reassignments(wanted)
    admin.wait_for_reassignments(list(wanted))


class Sockets:
    """Real shells, sockets and files in this process, without Ray: every process of the cluster is an object."""

    def __init__(self, whole: WholeCluster) -> None:
        self._whole, self._cluster = whole, whole.cluster

    def run(self, what: Callable[[LocalCluster], Any]) -> None:
        """Run something on the cluster's loop, and wait until all is well again."""
        self._whole.run(what(self._cluster))
        wait_for(lambda: is_whole(self._cluster.running().status()), "all is well again", 60)


async def without_broker(cluster: LocalCluster, broker: int) -> None:
    """End a broker and its replicas."""
    await cluster.stop_broker(broker)
    for name in await cluster.living(broker):
        await cluster.end(name)


async def restart_brokers(cluster: LocalCluster) -> None:
    for broker in (1, 2, 3):
        await without_broker(cluster, broker)
        await cluster.start_broker(broker)
        await cluster.broker_servers[broker].wait_registered(20)


async def restart_controller(cluster: LocalCluster) -> None:
    await cluster.stop_controller()
    await cluster.start_controller()


async def restart_coordinators(cluster: LocalCluster) -> None:
    for place in list(cluster.coordinators):
        await cluster.restart_coordinator(*place)


async def crash_leaders(cluster: LocalCluster) -> None:
    states = list(cluster.running().image.partitions())
    for state in states:
        if state.partition.topic in (ORDERS, JOBS) and state.leader > 0:
            spec = await cluster.crash_replica(*state.partition, state.leader)
            await cluster.ensure(spec)


@pytest.mark.timeout(400)
def test_services_go_on_over_sockets_alone(tmp_path: Path) -> None:
    whole = WholeCluster(tmp_path / "cluster", brokers=3)
    whole.cluster.config = {**whole.cluster.config, **CONFIG}
    with whole:
        bootstrap, secret = whole.cluster.bootstrap(), SECRET.hex()
        with raylog.Admin(bootstrap=bootstrap, secret=secret) as admin:
            create(admin)
            day, cluster = Day(tmp_path / "day", bootstrap), Sockets(whole)
            try:
                day.begin(secret)
                for what in (restart_brokers, restart_controller, restart_coordinators, crash_leaders):
                    with day.event(what.__name__.replace("_", " ")):
                        cluster.run(what)
                with day.event("all partitions move"):
                    move_partitions(admin)
                with day.event("a broker is lost with its replicas"):
                    whole.run(without_broker(whole.cluster, 3))
                    wait_for(lambda: not is_whole(whole.cluster.running().status()), "it is offline")
                cluster.run(lambda one: one.start_broker(3))
                with day.event("the cluster stops, is away for a while, and starts"):
                    whole.run(whole.cluster.stop())
                    day.wait_until_lost()
                    cluster.run(LocalCluster.start)
                assert whole.cluster.bootstrap() == bootstrap
                day.uses_no_more()
                day.finish(secret)
            finally:
                day.kill()


# ------------------------------------------------------------ on nodes of Ray


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_services_go_on_through_all_that_happens_to_nodes(tmp_path: Path) -> None:
    with RayNodes(tmp_path) as nodes:
        handles = {name: nodes.add(name) for name in NODES}
        cluster = nodes.start("1", config=CONFIG)
        wait_for(lambda: len(online(cluster)) == 3, "three brokers")
        with raylog.Admin() as admin:
            create(admin)
        bootstrap, secret = cluster.bootstrap(), cluster.secret()
        day = Day(tmp_path / "day", bootstrap)
        try:
            day.begin(secret)
            bother(day, cluster)
            with day.event("a node is lost"):
                nodes.remove(handles["3"])
                wait_for(lambda: len(online(cluster)) == 2, "its broker is offline")
            nodes.add("3")
            wait_for(lambda: is_whole(cluster.status()), "the node is back", 120)
            with day.event("the cluster stops and starts"):
                cluster.stop()
                day.wait_until_lost()
                cluster = nodes.start("1")
            assert cluster.bootstrap() == bootstrap
            day.uses_no_more()
            day.finish(rotate(day, nodes, secret))
            cluster.stop()
        finally:
            day.kill()


def bother(day: Day, cluster: raylog.Cluster) -> None:
    """Restarts, crashes and moves, one after the other."""

    def restart_each_broker() -> None:
        for broker in (1, 2, 3):
            cluster.stop_broker(broker)
            cluster.start_broker(broker)

    def crash_each_broker() -> None:
        for row in cluster.status()["brokers"]:
            kill(call_actor(f"broker-on-{row['node_id']}", "pid"))
            wait_for(lambda: len(online(cluster)) == 3, "the broker is back")

    def crash_the_controller() -> None:
        kill(call_actor("controller", "pid"))

    def crash_all_leaders() -> None:
        with raylog.Admin() as admin:
            assert kill_leaders(admin, ORDERS) == PARTITIONS

    def move_all_partitions() -> None:
        with raylog.Admin() as admin:
            move_partitions(admin)

    for happen in (
        restart_each_broker,
        crash_each_broker,
        crash_the_controller,
        crash_all_leaders,
        move_all_partitions,
    ):
        what = happen.__name__.replace("_", " ")
        with day.event(what):
            happen()
        wait_for(lambda: is_whole(cluster.status()), f"all is well after: {what}", 120)


def rotate(day: Day, nodes: RayNodes, secret: str) -> str:
    """Change the clients' secret as operations.md describes; returns the new one."""
    file = nodes.root / "1" / CLIENT_FILE
    with day.event("a new secret beside the old one"):
        write_values(file, [os.urandom(NEW_SECRET_BYTES), *read_values(file)])
        nodes.start("1")  # brings the other nodes' files up to date
    new = read_values(file)[0].hex()
    assert new != secret
    for service in SERVICES:
        day.end(service)
        day.start(service, new)
    with day.event("services have the new secret, and the old one is removed"):
        write_values(file, read_values(file)[:1])
        nodes.start("1")
    with pytest.raises(raylog.AuthenticationFailed):
        raylog.Admin(bootstrap=day.bootstrap, secret=secret).close()
    return new
