"""Coordinators that are not used have no process: they end, come back with what was committed, and start quickly."""

from typing import Any

import pytest

from raylog.actors.coordinators import server
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.types import OffsetAndMetadata
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

PARTITIONS = 5
SLEEPS = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "replica.sleep.after.ms": "1000",
    "group.initial.rebalance.delay.ms": "50",
}
AT = TopicPartition("t", 0)


def clients(cluster: LocalCluster) -> dict[str, Any]:
    return {"bootstrap": cluster.bootstrap(), "secret": SECRET}


async def create(cluster: LocalCluster, topic: str = "t") -> None:
    async with AsyncAdmin(**clients(cluster)) as admin:
        await admin.create_topic(topic, partitions=1, replication_factor=1)


async def commit(cluster: LocalCluster, group: str, offset: int) -> None:
    async with AsyncConsumer(group_id=group, enable_auto_commit=False, **clients(cluster)) as consumer:
        await consumer.commit({AT: OffsetAndMetadata(offset)})


async def committed(cluster: LocalCluster, group: str) -> int | None:
    async with AsyncConsumer(group_id=group, **clients(cluster)) as consumer:
        return await consumer.committed(AT)


async def all_ended(cluster: LocalCluster) -> None:
    await eventually(lambda: not cluster.coordinators, what="the coordinators have ended")
    image = cluster.running().image
    assert all(found.port == 0 for found in image.coordinators.values())


@in_cluster(config=SLEEPS)
async def test_a_coordinator_ends_and_comes_back_with_what_was_committed(cluster: LocalCluster, talk: Talk) -> None:
    await create(cluster)
    await commit(cluster, "g", 7)
    await commit(cluster, "other", 9)
    await all_ended(cluster)
    assert await committed(cluster, "g") == 7
    assert await committed(cluster, "other") == 9
    await all_ended(cluster)
    await commit(cluster, "g", 8)
    assert await committed(cluster, "g") == 8


@in_cluster(config=SLEEPS)
async def test_members_keep_their_coordinator_and_find_the_next_one(cluster: LocalCluster, talk: Talk) -> None:
    await create(cluster)
    for _ in range(2):
        async with AsyncConsumer("t", group_id="g", **clients(cluster)) as consumer:
            await consumer.getmany(timeout_ms=5_000)
            assert consumer.assignment() == {AT}
            assert len(cluster.coordinators) == 1
            async with AsyncAdmin(**clients(cluster)) as admin:
                assert (await admin.describe_group("g")).state == "Stable"
        await all_ended(cluster)


@in_cluster(config=SLEEPS)
async def test_a_list_of_groups_starts_only_coordinators_that_had_groups(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**clients(cluster)) as admin:
        assert await admin.list_groups() == []
        await create(cluster)
        await commit(cluster, "g", 7)
        await all_ended(cluster)
        assert [found.group_id for found in await admin.list_groups()] == ["g"]
        assert len(cluster.coordinators) == 1


@in_cluster(config=SLEEPS)
async def test_a_search_for_a_coordinator_waits_until_it_has_started(cluster: LocalCluster, talk: Talk) -> None:
    _, host, port = (await talk.broker("find_coordinator", ["group", "g"])).args
    assert (await talk.call((host, port), "list_groups", [])).args == [], "a request waits until the groups are loaded"


@in_cluster(config=SLEEPS)
async def test_a_coordinator_that_was_not_ended_serves_again(cluster: LocalCluster, talk: Talk) -> None:
    await create(cluster)
    ended: list[tuple[str, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "ENDED_WITHIN_S", 0.1)
        patch.setattr(cluster.running(), "_end_coordinator", lambda kind, index: ended.append((kind, index)))
        await commit(cluster, "g", 7)
        (coordinator,) = cluster.coordinators.values()
        await eventually(lambda: bool(ended), what="the controller was to end it")
        await eventually(lambda: coordinator.epoch == 1, what="it has registered as the next incarnation")
    assert await committed(cluster, "g") == 7
    assert list(cluster.coordinators.values()) == [coordinator]
