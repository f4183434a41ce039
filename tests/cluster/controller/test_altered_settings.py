"""The cluster's settings are altered while it runs: in every process at once, after a failover, and after a start."""

from __future__ import annotations

import asyncio

from raylog.actors.clock import wall_ms
from raylog.actors.groups.server import GroupCoordinatorServer
from raylog.base.errors import GroupMaxSizeReached, InvalidConfig, InvalidTimestamp, NotEnoughReplicas
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.storage.batch.records import encode_batch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

AGE, SESSION = "log.message.timestamp.before.max.ms", "broker.session.timeout.ms"
HOUR_MS = 3_600_000
ALTERED = {"group.max.size": "1", AGE: "60000", "num.partitions": "4", "auto.create.topics.enable": "true"}


def old_batch() -> bytes:
    return encode_batch([None], [b"x"], [wall_ms() - HOUR_MS])


async def produce_old(talk: Talk) -> None:
    head, endpoint = await talk.leader("t")
    await talk.call(endpoint, "produce", [*head, -1, 5000], old_batch())


async def is_refused(talk: Talk) -> None:
    """The leader refuses it for good, once all replicas in sync have followed it (ADR 0132)."""
    head, endpoint = await talk.leader("t")
    async with asyncio.timeout(15):
        while True:
            call = talk.call(endpoint, "produce", [*head, -1, 5000], old_batch())
            if isinstance(await refused(call, InvalidTimestamp, NotEnoughReplicas), InvalidTimestamp):
                return
            await asyncio.sleep(0.02)


def all_have(cluster: LocalCluster, size: int, age: str | None) -> bool:
    """Whether every process goes by these values."""
    coordinators = [each for each in cluster.coordinators.values() if isinstance(each, GroupCoordinatorServer)]
    machines = [each._runner._machine for each in coordinators if each._runner is not None]
    replicas = [each for each in cluster.replicas.values() if each.spec.topic == "t"]
    return (
        len(machines) == len(coordinators) > 0
        and all(machine._settings.group_max_size == size for machine in machines)
        and len(replicas) == cluster.brokers
        and all(replica.spec.cluster_config.get(AGE) == age for replica in replicas)
        and all(server.image.config.get(AGE) == age for server in cluster.broker_servers.values())
    )


async def has_room_for_one(cluster: LocalCluster, group: str) -> None:
    async with (
        AsyncConsumer("t", group_id=group, **cluster.clients()) as first,
        AsyncConsumer("t", group_id=group, **cluster.clients()) as second,
    ):
        async with asyncio.timeout(15):
            while not first.assignment():
                await first.getmany(timeout_ms=50)
        await refused(second.getmany(timeout_ms=10_000), GroupMaxSizeReached)


@in_cluster()
async def test_an_altered_setting_counts_without_a_restart_and_after_one(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    async with AsyncAdmin(**cluster.clients()) as admin:
        await produce_old(talk)
        async with AsyncConsumer("t", group_id="g", **cluster.clients()) as consumer:
            await consumer.getmany(timeout_ms=100)
        processes = {name: id(server) for name, server in cluster.replicas.items()}
        answer = await admin.alter_cluster_config({**ALTERED, SESSION: 4_000})
        assert {name: entry.value for name, entry in answer.items() if not entry.next} == ALTERED
        assert (answer[SESSION].value, answer[SESSION].next) == ("2500", "4000")
        await eventually(lambda: all_have(cluster, 1, "60000"), what="every process has what was altered")
        assert {name: id(server) for name, server in cluster.replicas.items()} == processes
        await is_refused(talk)
        await has_room_for_one(cluster, "g")
        assert len((await admin.create_topic("new", replication_factor=1)).partitions) == 4
        with_typo = {"num.partitions": 2, "num.partition": 9}
        await refused(admin.alter_cluster_config(with_typo), InvalidConfig)

    await cluster.stop_controller()
    await cluster.start_controller()
    await eventually(lambda: all_have(cluster, 1, "60000"), what="every process has it after the failover")
    assert cluster.running().image.settings.broker_session_timeout_ms == 2_500
    spec = await cluster.crash_replica("t", 0, 2)
    await cluster.ensure(spec)
    await talk.whole("t")
    await eventually(lambda: all_have(cluster, 1, "60000"), what="a replica that was started again has it")
    await is_refused(talk)

    await cluster.stop()
    cluster.config = {**cluster.config, "num.partitions": "9"}
    await cluster.start()
    assert cluster.running().image.settings.broker_session_timeout_ms == 4_000
    async with AsyncAdmin(**cluster.clients()) as admin:
        await has_room_for_one(cluster, "h")
        await eventually(lambda: all_have(cluster, 1, "60000"), what="every process has it after the start")
        assert (await admin.describe_configs())["num.partitions"].origin == "altered"
        after = await admin.alter_cluster_config(delete=[*ALTERED, SESSION])
        assert (after["num.partitions"].value, after["num.partitions"].origin) == ("9", "start")
        assert after[SESSION].next == "2500"
        await eventually(lambda: all_have(cluster, 10_000, None), what="every process has the defaults again")
