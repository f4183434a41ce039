"""Groups of the consumer protocol over the wire: members join, leave and die, topics grow, coordinators restart."""

import asyncio
import time

import pytest

from raylog.base.errors import InconsistentGroupProtocol, UnreleasedInstanceId, UnsupportedAssignor
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.groups.readers import QUICK, TOPIC, Reader, readers, shared, traffic
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

GAP_S_MAX = 0.2


@in_cluster(config=QUICK)
async def test_members_share_the_partitions_as_they_come_and_leave(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=6)
    async with readers(cluster, 1) as (first,):
        await eventually(shared([first], 6))
        second = Reader(cluster)
        await second.start()
        await eventually(shared([first, second], 6))
        assert [kind for kind, _ in first.received] == ["assigned", "revoked"]
        assert len(first.received[1][1]) == 3, "only what the other gets"
        await second.close()
        await eventually(lambda: len(first.received) == 3)
        assert first.received[2] == ("assigned", second.received[0][1])


@in_cluster(config=QUICK)
async def test_a_member_reads_on_what_it_keeps(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with traffic(cluster, 4), readers(cluster, 1) as (first,):
        await eventually(shared([first], 4))
        await eventually(lambda: len(first.read) == 4)
        began_s = time.monotonic()
        async with readers(cluster, 1) as (second,):
            await eventually(shared([first, second], 4))
            kept = first.assigned()
            await eventually(lambda: len(second.read) == 2)
        await eventually(shared([first], 4))
        gaps = {partition: round(first.longest_gap_s(partition, began_s), 3) for partition in kept}
        assert max(gaps.values()) < GAP_S_MAX, gaps


@in_cluster(config=QUICK)
async def test_a_newcomer_waits_for_no_heartbeat_and_stops_no_fetch(cluster: LocalCluster, talk: Talk) -> None:
    """Were news to wait for the next heartbeat, the newcomer would get its partitions after 20 s."""
    await talk.create(TOPIC, partitions=6)
    slow = {"heartbeat_interval_ms": 20_000, "session_timeout_ms": 60_000}
    async with traffic(cluster, 6), readers(cluster, 2, **slow) as group:
        await eventually(shared(group, 6))
        await eventually(lambda: all(len(reader.read) == 3 for reader in group))
        fetching = [dict(reader.consumer._engine.fetcher._tasks) for reader in group]
        async with readers(cluster, 1, **slow) as (newcomer,):
            async with asyncio.timeout(5):
                await eventually(shared([*group, newcomer], 6))
            for reader, tasks in zip(group, fetching, strict=True):
                kept = {TopicPartition(TOPIC, number) for number in reader.assigned()}
                assert kept < set(tasks), "one partition of each went to the newcomer"
                assert all(reader.consumer._engine.fetcher._tasks[each] is tasks[each] for each in kept)


@in_cluster(config=QUICK)
async def test_a_coordinator_that_fails_over_causes_no_rebalance(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with traffic(cluster, 4), readers(cluster, 2) as group, AsyncAdmin(**cluster.clients()) as admin:
        await eventually(shared(group, 4))
        await eventually(lambda: all(len(reader.read) == 2 for reader in group))
        before = await admin.describe_group("board")
        began_s = time.monotonic()
        await cluster.restart_coordinator("group", 0)
        received = [list(reader.received) for reader in group]
        marks = {each: seen[-1][1] for reader in group for each, seen in reader.read.items()}
        await eventually(
            lambda: all(seen[-1][1] > marks[each] + 20 for reader in group for each, seen in reader.read.items())
        )
        after = await admin.describe_group("board")
        assert (after.generation, after.state) == (before.generation, "Stable")
        assert [reader.received for reader in group] == received
        gaps = [reader.longest_gap_s(partition, began_s) for reader in group for partition in reader.assigned()]
        assert max(gaps) < GAP_S_MAX, gaps


@in_cluster(config=QUICK)
async def test_a_member_that_dies_is_replaced_from_its_commits(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with traffic(cluster, 4), readers(cluster, 2) as (first, second):
        await eventually(shared([first, second], 4))
        await eventually(lambda: len(second.read) == 2)
        died = second.assigned()
        await asyncio.sleep(0.3)  # some of it is committed
        await second.stop_polling()
        engine = second.consumer._engine
        assert engine.group is not None
        await engine.group.close()  # no more heartbeats, and no farewell
        await eventually(shared([first], 4))
        await eventually(lambda: died <= {each.partition for each in first.read})
        for partition in died:
            offsets = [offset for _, offset in first.read[TopicPartition(TOPIC, partition)]]
            last = second.read[TopicPartition(TOPIC, partition)][-1][1]
            assert 0 < offsets[0] <= last + 1, "from the last commit"


@in_cluster(config=QUICK)
async def test_new_partitions_are_assigned(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=2)
    async with readers(cluster, 2) as group, AsyncAdmin(**cluster.clients()) as admin:
        await eventually(shared(group, 2))
        await admin.create_partitions(TOPIC, 4)
        await eventually(shared(group, 4))


@in_cluster(config=QUICK)
async def test_a_static_member_that_returns_gets_its_partitions(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=4)
    async with readers(cluster, 1) as (first,), AsyncAdmin(**cluster.clients()) as admin:
        static = Reader(cluster, group_instance_id="gate-1")
        await static.start()
        await eventually(shared([first, static], 4))
        before = static.assigned()
        epoch = (await admin.describe_group("board")).generation
        await static.close()
        again = Reader(cluster, group_instance_id="gate-1")
        await again.start()
        await eventually(lambda: again.assigned() == before)
        assert (await admin.describe_group("board")).generation == epoch
        double = Reader(cluster, group_instance_id="gate-1", session_timeout_ms=400)
        await double.start()
        assert double.task is not None
        with pytest.raises(UnreleasedInstanceId, match="own group_instance_id"):
            await double.task
        await double.close()
        await again.close()


@in_cluster(config=QUICK)
async def test_protocols_do_not_mix_and_an_empty_group_converts(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=2)
    async with AsyncAdmin(**cluster.clients()) as admin:
        async with readers(cluster, 1) as (first,):
            await eventually(shared([first], 2))
            classic = Reader(cluster, group_protocol="classic")
            await classic.start()
            assert classic.task is not None
            with pytest.raises(InconsistentGroupProtocol, match="group_protocol='consumer' here"):
                await classic.task
            await classic.close()
        async with readers(cluster, 1, group_protocol="classic") as (second,):
            await eventually(shared([second], 2))
            assert [group.group_type for group in await admin.list_groups()] == ["classic"]
            wrong = Reader(cluster, group_protocol="consumer")
            await wrong.start()
            assert wrong.task is not None
            with pytest.raises(InconsistentGroupProtocol, match="group_protocol='classic' here"):
                await wrong.task
            await wrong.close()
        async with readers(cluster, 1) as (third,):
            await eventually(shared([third], 2))
            assert [group.group_type for group in await admin.list_groups()] == ["consumer"]
            named = await admin.list_groups(["Stable", "Reconciling", "Assigning"], types=["consumer"])
            assert [group.group_id for group in named] == ["board"]
            assert await admin.list_groups(types=["classic"]) == []


@in_cluster(config=QUICK)
async def test_an_assignor_that_is_not_known_is_refused(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=2)
    async with readers(cluster, 1, group_remote_assignor="best") as (only,):
        assert only.task is not None
        with pytest.raises(UnsupportedAssignor, match="uniform, range"):
            await only.task
