"""The controller stops and restarts; then the whole cluster does."""

import asyncio
from pathlib import Path

from raylog.base.errors import InconsistentClusterId, NotController
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually


def lives(cluster: LocalCluster) -> dict[tuple[object, ...], object]:
    """Incarnation and leader epoch of every replica."""
    return {
        (replica.spec.topic, replica.spec.partition, replica.spec.broker): (
            replica.status()["incarnation"],
            replica.status()["leader_epoch"],
        )
        for replica in cluster.replicas.values()
    }


def connected(cluster: LocalCluster) -> bool:
    return all(replica.status()["controller_connected"] for replica in cluster.replicas.values())


@in_cluster()
async def test_produce_and_fetch_go_on_without_a_controller(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", partitions=3)
    await cluster.stop_controller()
    for number in range(20):
        assert await talk.produce("t", b"%d" % number, partition=number % 3) == number // 3
    assert len(await talk.values("t", 6)) >= 6
    refusal = asyncio.create_task(
        refused(talk.broker("create_topic", ["u", 1, 1, None, {}, False, 100]), NotController)
    )
    assert "being restarted" in str(await refusal)
    await cluster.start_controller()
    await talk.create("u")


@in_cluster(config={"broker.session.timeout.ms": "1000"})
async def test_after_a_controller_restart_replicas_keep_incarnation_and_epochs(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t", partitions=2)
    await talk.produce("t", b"a")
    before, rows = lives(cluster), [await talk.partition("t", number) for number in range(2)]
    for _ in range(3):
        await cluster.stop_controller()
        await eventually(lambda: not connected(cluster))
        await cluster.start_controller()
        await eventually(lambda: connected(cluster), what="all replicas register again")
        assert lives(cluster) == before
        topics = cluster.running().image.topics["t"].partitions
        assert [(topic.leader, topic.leader_epoch, list(topic.isr)) for topic in topics] == [
            (row.leader, row.leader_epoch, row.isr) for row in rows
        ]
    await cluster.pass_grace()
    assert lives(cluster) == before
    await talk.produce("t", b"b")


@in_cluster(config={"broker.session.timeout.ms": "1000"})
async def test_a_leader_lost_together_with_the_controller_is_replaced(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"a")
    old = (await talk.partition("t")).leader
    await cluster.stop_controller()
    await cluster.stop_broker(old)
    await cluster.stop_replica("t", 0, old)
    await cluster.start_controller()
    row = await talk.until("t", lambda found: found.leader not in (old, -1) and found.leader_epoch == 2)
    assert old not in row.isr
    assert await talk.produce("t", b"b") == 1
    await cluster.start_broker(old)
    await talk.whole("t")


@in_cluster()
async def test_everything_comes_back_from_the_directories(cluster: LocalCluster, talk: Talk) -> None:
    ids = {name: await talk.create(name, partitions=2, config={"retention.ms": 1_000_000}) for name in ("t", "u")}
    for number in range(30):
        await talk.produce("t", b"%d" % number, partition=number % 2)
    for order in ("controller first", "brokers first"):
        await cluster.stop()
        assert not cluster.replicas
        if order == "controller first":
            starting = asyncio.create_task(cluster.start_controller())
            for broker in (1, 2, 3):
                await cluster.start_broker(broker)
            await starting
        else:
            await cluster.start()
        await cluster.all_home()
        for name, topic_id in ids.items():
            for partition in range(2):
                await talk.whole(name, partition)
            row = await talk.topic(name)
            assert (row[1], row[5]) == (topic_id, {"retention.ms": "1000000"})
        assert [int(value or b"") for value in await talk.values("t", 15, 0)] == list(range(0, 30, 2))
        assert [int(value or b"") for value in await talk.values("t", 15, 1)] == list(range(1, 30, 2))
    assert await talk.produce("t", b"new") == 15


@in_cluster()
async def test_a_directory_of_another_cluster_is_refused(cluster: LocalCluster, talk: Talk) -> None:
    await cluster.stop()
    cluster.cluster_id = "d" * 32
    error = await refused(cluster.start(), InconsistentClusterId)
    assert "belongs to this cluster" in str(error)
    cluster.controller = None


@in_cluster(config={"broker.session.timeout.ms": "300", "broker.heartbeat.interval.ms": "50"})
async def test_sessions_shorter_than_the_default_heartbeat_stand(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    controller = cluster.controller
    assert controller is not None
    await cluster.pass_grace()
    before = controller.image.version
    for _ in range(10):  # about a second without traffic except heartbeats
        assert (await talk.fetch("t", max_wait_ms=100)).records == []
    assert controller.image.version == before, "no broker was taken for lost"


async def test_a_metadata_log_survives_a_crash_in_the_middle_of_a_write(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=1) as cluster, Talk(cluster) as talk:
        await talk.create("t", replicas=1)
        await cluster.stop()
        log = next((tmp_path / "broker-1" / "metadata").glob("*/*.log"))
        log.with_name("clean-shutdown").unlink()
        with log.open("ab") as file:
            file.write(log.read_bytes()[:100])
        await cluster.start()
        await cluster.all_home()
        await talk.whole("t")
