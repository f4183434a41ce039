"""Three processes without Ray go through a day: restarts, moves, a changed secret, a lost broker, a full stop.

The cluster is real shells, sockets and files in this process. They were given `bootstrap=` once, and the file of a
secret. Nothing is lost, nothing is stored twice, and they use as much at the end as before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import raylog
from raylog.rpc.auth.secret_files import CLIENT_FILE, NEW_SECRET_BYTES, SecretFiles, make_secrets, write_values
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.service.day import PARTITIONS, Day
from tests.cluster.service.programs import JOBS, ORDERS
from tests.spark.whole_cluster import WholeCluster
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster]

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


def change_secret(files: SecretFiles, day: Day) -> None:
    """What `raylog secret change --client` and `finish` do, and the copy for services between the two."""
    old, new = files().client[0], secrets.token_bytes(NEW_SECRET_BYTES)
    write_values(files.folder / CLIENT_FILE, [new, old])
    day.give(new.hex())
    write_values(files.folder / CLIENT_FILE, [new])


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
    make_secrets(tmp_path / "secrets")
    whole.cluster.secret = files = SecretFiles(tmp_path / "secrets")
    with whole:
        bootstrap = whole.cluster.bootstrap()
        day, cluster = Day(tmp_path / "day", bootstrap), Sockets(whole)
        day.give(files().client[0].hex())
        with raylog.Admin(bootstrap=bootstrap, secret_file=day.secret_file) as admin:
            create(admin)
            try:
                day.begin()
                for what in (restart_brokers, restart_controller, restart_coordinators, crash_leaders):
                    with day.event(what.__name__.replace("_", " ")):
                        cluster.run(what)
                with day.event("all partitions move"):
                    move_partitions(admin)
                with day.event("the clients' secret is changed"):
                    change_secret(files, day)
                    cluster.run(restart_brokers)
                with day.event("a broker is lost with its replicas"):
                    whole.run(without_broker(whole.cluster, 3))
                    wait_for(lambda: not is_whole(whole.cluster.running().status()), "it is offline")
                cluster.run(lambda one: one.start_broker(3))
                with day.event("the cluster stops, is away for a while, and starts"):
                    marks = day.logged()
                    whole.run(whole.cluster.stop())
                    day.wait_until_lost(marks)
                    cluster.run(LocalCluster.start)
                assert whole.cluster.bootstrap() == bootstrap
                assert set(day.times_logged("has changed: new connections prove").values()) == {1}
                day.uses_no_more()
                day.finish()
            finally:
                day.kill()
