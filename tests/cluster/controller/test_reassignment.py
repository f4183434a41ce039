"""Partitions move, topics grow and brokers are replaced, on real shells, sockets and files."""

import asyncio
from pathlib import Path

from raylog.base.errors import (
    FencedLeaderEpoch,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    NoReassignmentInProgress,
    NotLeaderOrFollower,
    RaylogError,
)
from raylog.storage.directory import partition_folder
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Partition, Talk, in_cluster, refused
from tests.waiting import eventually

LINE = b"x" * 1_000


async def move(talk: Talk, topic: str, brokers: list[int] | None, *, partition: int = 0, throttle: int | None = None):  # type: ignore[no-untyped-def]
    return await talk.broker("alter_partition_reassignments", [[[topic, partition, brokers]], throttle])


def folder(cluster: LocalCluster, broker: int, topic: str = "t", partition: int = 0) -> Path:
    return partition_folder(cluster.root / f"broker-{broker}", topic, partition)


async def create_on(talk: Talk, assignment: list[list[int]], topic: str = "t") -> None:
    """Create a topic on these brokers and wait until it is whole."""
    await talk.broker("create_topic", [topic, -1, -1, assignment, {}, False, 5000])
    for number in range(len(assignment)):
        await talk.whole(topic, number)


def moved_to(*brokers: int):  # type: ignore[no-untyped-def]
    def arrived(row: Partition) -> bool:
        return row.replicas == list(brokers) and sorted(row.isr) == sorted(brokers) and row.leader in brokers

    return arrived


@in_cluster(brokers=4)
async def test_a_partition_moves_with_its_records_and_leaves_nothing_behind(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3]])
    values = [b"%d" % number for number in range(200)]
    for number in range(0, 200, 20):
        await talk.produce("t", *values[number : number + 20])
    await move(talk, "t", [4, 2, 3])
    row = await talk.until("t", moved_to(4, 2, 3))
    assert row.leader in (2, 3, 4)
    assert await talk.values("t", 200) == values
    await talk.produce("t", b"more")
    await eventually(lambda: not folder(cluster, 1).exists(), what="the removed replica's folder goes")
    assert sorted(replica.spec.broker for replica in cluster.replicas.values()) == [2, 3, 4]
    assert (await talk.broker("list_partition_reassignments", [])).args == []


@in_cluster(brokers=6)
async def test_all_replicas_move_at_once_under_a_producer_that_loses_nothing(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3]])
    acknowledged: dict[int, bytes] = {}
    done = asyncio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set() or number < 50:
            value = b"%d" % number
            number += 1
            try:
                acknowledged[await talk.produce("t", value, timeout_ms=2000)] = value
            except (RaylogError, OSError):
                await asyncio.sleep(0.01)  # not acknowledged: it may be stored or not

    writer = asyncio.create_task(write())
    await move(talk, "t", [4, 5, 6])
    await talk.until("t", moved_to(4, 5, 6))
    await move(talk, "t", [1, 2, 3])
    await talk.until("t", moved_to(1, 2, 3))
    done.set()
    await writer
    found = dict(enumerate(await talk.values("t", max(acknowledged) + 1)))
    assert {offset: found[offset] for offset in acknowledged} == acknowledged
    await eventually(lambda: not any(folder(cluster, broker).exists() for broker in (4, 5, 6)))


@in_cluster(brokers=4)
async def test_a_cancelled_move_leaves_the_old_set(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3]])
    await talk.produce("t", *[LINE] * 500)
    await move(talk, "t", [1, 2, 4], throttle=1_000)
    [row] = (await talk.broker("list_partition_reassignments", [])).args
    assert row[:5] == ["t", 0, [1, 2, 4, 3], [4], [3]]
    await eventually(lambda: folder(cluster, 4).exists())
    await move(talk, "t", None)
    await talk.until("t", moved_to(1, 2, 3))
    await eventually(lambda: not folder(cluster, 4).exists())
    await refused(move(talk, "t", None), NoReassignmentInProgress)
    assert len(await talk.values("t", 500)) == 500


@in_cluster(brokers=4)
async def test_a_throttle_slows_the_added_replica_only(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3]])
    for _ in range(10):
        await talk.produce("t", *[LINE] * 100)
    await move(talk, "t", [1, 2, 3, 4], throttle=1_000)

    def stored() -> int:
        try:
            return int(str(cluster.replica("t", 0, 4).status()["size_bytes"]))
        except (KeyError, NotLeaderOrFollower):
            return 0  # it is being started

    await eventually(lambda: stored() > 0, what="it fetches once")
    await talk.produce("t", b"goes on")
    assert sorted((await talk.partition("t")).isr) == [1, 2, 3], "it is far from caught up"
    assert stored() < 500_000
    await talk.broker("alter_partition_reassignments", [[], 1_000_000_000])
    await talk.until("t", moved_to(1, 2, 3, 4))


@in_cluster(brokers=4)
async def test_what_moved_while_a_broker_was_away_is_removed_when_it_returns(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3]])
    await create_on(talk, [[3, 2]], "kept")
    await talk.produce("t", b"a")
    await cluster.stop_broker(3)
    await cluster.stop_replica("t", 0, 3)
    await move(talk, "t", [1, 2, 4])
    await talk.until("t", moved_to(1, 2, 4))
    assert folder(cluster, 3).exists()
    await cluster.start_broker(3)
    await eventually(lambda: not folder(cluster, 3).exists(), what="the returned broker removes what moved")
    assert folder(cluster, 3, "kept").exists()
    await move(talk, "t", [1, 2, 3])
    await talk.until("t", moved_to(1, 2, 3))
    assert await talk.values("t", 1) == [b"a"]


@in_cluster(brokers=4)
async def test_a_replica_removed_and_added_again_while_down_keeps_its_log(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3]])
    await talk.produce("t", b"a", b"b")
    await cluster.stop_broker(3)
    await cluster.stop_replica("t", 0, 3)
    await move(talk, "t", [1, 2])
    await talk.until("t", moved_to(1, 2))
    await talk.produce("t", b"c")
    await move(talk, "t", [1, 2, 3])
    await cluster.start_broker(3)
    await talk.until("t", moved_to(1, 2, 3))
    assert await talk.values("t", 3) == [b"a", b"b", b"c"]


@in_cluster(brokers=4)
async def test_a_move_goes_on_after_the_controller_restarts(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3]])
    await cluster.stop_broker(4)
    await move(talk, "t", [4, 1, 2])
    await cluster.stop_controller()
    await cluster.start_controller()
    await cluster.start_broker(4)
    await talk.until("t", moved_to(4, 1, 2))


@in_cluster(brokers=3)
async def test_replicas_are_added_to_a_topic_that_had_one(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1]])
    await talk.produce("t", b"a")
    await move(talk, "t", [1, 2, 3])
    await talk.until("t", moved_to(1, 2, 3))
    await eventually(lambda: cluster.replica("t", 0, 1).status()["min_insync_replicas"] == 2, what="a majority of 3")
    await move(talk, "t", [2])
    await talk.until("t", moved_to(2))
    await talk.produce("t", b"b")
    assert await talk.values("t", 2) == [b"a", b"b"]


@in_cluster(brokers=3)
async def test_the_deposed_leader_refuses_writes_at_once(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2]])
    await talk.until("t", lambda row: row.leader == 1)
    head, endpoint = await talk.leader("t")
    await cluster.stop_broker(1)  # the stopped broker cannot end its removed replica
    await move(talk, "t", [2, 3])
    await talk.until("t", moved_to(2, 3))
    await refused(talk.produce_at(endpoint, head, b"late"), FencedLeaderEpoch, NotLeaderOrFollower)
    await talk.produce("t", b"a")
    assert await talk.values("t", 1) == [b"a"]


@in_cluster(brokers=2)
async def test_bad_requests_are_refused_with_the_reason(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2]])
    assert "never registered" in str(await refused(move(talk, "t", [1, 9]), InvalidReplicaAssignment))
    assert "twice" in str(await refused(move(talk, "t", [1, 1]), InvalidReplicaAssignment))
    assert "at least one" in str(await refused(move(talk, "t", []), InvalidReplicaAssignment))
    await refused(talk.broker("alter_partition_reassignments", [[["t", 0, ["1"]]], None]), InvalidRequest)
    await refused(talk.broker("alter_partition_reassignments", [[["t", 0]], None]), InvalidRequest)
    await refused(talk.broker("create_partitions", ["t", "2", None]), InvalidRequest)
    assert "has 1 partitions" in str(await refused(talk.broker("create_partitions", ["t", 0, None]), InvalidPartitions))


@in_cluster()
async def test_a_topic_grows_and_its_new_partitions_serve(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"a")
    await talk.broker("create_partitions", ["t", 4, None])
    rows = [await talk.whole("t", number) for number in range(4)]
    assert {row.leader for row in rows[1:]} == {1, 2, 3}
    for number in (1, 2, 3):
        await talk.produce("t", b"b", partition=number)
    assert await talk.values("t", 1) == [b"a"]


@in_cluster(brokers=4, config={"auto.heal.after.ms": "500"})
async def test_a_broker_that_is_lost_permanently_is_replaced(cluster: LocalCluster, talk: Talk) -> None:
    await create_on(talk, [[1, 2, 3], [3, 1, 2]])
    await talk.produce("t", b"a")
    await talk.produce("t", b"b", partition=1)
    await cluster.pass_grace()
    await cluster.stop_broker(3)
    for number in (0, 1):
        await cluster.stop_replica("t", number, 3)
    await talk.until("t", moved_to(1, 2, 4))
    await talk.until("t", moved_to(4, 1, 2), 1)
    assert await talk.values("t", 1) == [b"a"]
    assert await talk.values("t", 1, 1) == [b"b"]
    await cluster.start_broker(3)
    await eventually(lambda: not folder(cluster, 3).exists() and not folder(cluster, 3, partition=1).exists())
