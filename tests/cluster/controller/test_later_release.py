"""This release ignores the fields that a later release may add to every request, answer and record."""

import asyncio
from unittest import mock

import pytest

from raylog.base.errors import UnsupportedVersion
from raylog.base.features import SUPPORTED, LevelRange
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.admin.cluster import FeatureDescription
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.controller.later_release import all_are_of_a_later_release
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

QUICK = {"group.initial.rebalance.delay.ms": "50", "group.min.session.timeout.ms": "100"}
COUNT = 50


async def use(cluster: LocalCluster, topic: str) -> None:
    """Create a topic, write to it, read it in a group, commit, and inspect the result."""
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic(topic, partitions=2, replication_factor=3)
        async with AsyncProducer(**cluster.clients()) as producer:
            sent = [await producer.send(topic, value=b"%d" % number, partition=number % 2) for number in range(COUNT)]
            await producer.flush()
            await asyncio.gather(*sent)
        async with AsyncConsumer(
            topic, group_id="classic", group_protocol="classic", auto_offset_reset="earliest", **cluster.clients()
        ) as classic:
            async with asyncio.timeout(30):
                while not await classic.getmany(timeout_ms=500):
                    pass
        async with AsyncConsumer(
            topic, group_id="readers", auto_offset_reset="earliest", **cluster.clients()
        ) as consumer:
            found: list[bytes | None] = []
            async with asyncio.timeout(30):
                while len(found) < COUNT:
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        found += [record.value for record in records]
            await consumer.commit()
            assert sorted(int(value or b"") for value in found) == list(range(COUNT))
        described = await admin.describe_group("readers")
        assert described.offsets[TopicPartition(topic, 0)] == COUNT // 2
        await admin.elect_leaders([TopicPartition(topic, 0)])
        await admin.describe_cluster()


@in_cluster(config=QUICK)
async def test_a_cluster_reads_over_what_a_later_release_adds(cluster: LocalCluster, talk: Talk) -> None:
    with all_are_of_a_later_release() as seen:
        await use(cluster, "t")
        await cluster.stop_replica("t", 0, (await talk.partition("t")).leader)
        await eventually(lambda: "alter_partition" in seen.answers, what="the ISR is changed")
        await cluster.stop()
        await cluster.start()
        await cluster.all_home()
        await use(cluster, "u")
    assert {"produce", "fetch", "replica_fetch", "offset_commit", "voter_append"} <= seen.answers
    assert {"join_group", "consumer_group_heartbeat"} <= seen.answers
    assert {"metadata_update", "partition_state", "register_broker", "heartbeat"} <= seen.requests
    # Its files are readable by this release alone, too: metadata, snapshot, groups.
    await cluster.stop()
    await cluster.start()
    await cluster.all_home()
    await use(cluster, "v")


@in_cluster(config=QUICK)
async def test_a_broker_takes_part_only_if_it_knows_the_cluster_s_feature_level(
    cluster: LocalCluster, talk: Talk
) -> None:
    newest = SUPPORTED.highest
    async with AsyncAdmin(**cluster.clients()) as admin:
        assert await admin.describe_features() == FeatureDescription(newest, dict.fromkeys((1, 2, 3), (1, newest)))
        assert await admin.raise_feature_level() == (newest, newest)
        with pytest.raises(UnsupportedVersion, match="not known to broker 1, 2, 3; upgrade these first"):
            await admin.raise_feature_level(newest + 1)
        await cluster.stop_broker(3)
        with mock.patch("raylog.actors.broker.server.SUPPORTED", LevelRange(newest + 1, newest + 2)):
            await cluster.start_broker(3)
            with pytest.raises(UnsupportedVersion, match=rf"Broker 3 .* needs feature level {newest + 1} at least"):
                await cluster.broker_servers[3].wait_registered(10)
            await cluster.stop_broker(3)
        with mock.patch("raylog.actors.broker.server.SUPPORTED", LevelRange(1, newest + 1)):
            await cluster.start_broker(3)
            await cluster.broker_servers[3].wait_registered(10)
        assert (await admin.describe_features()).brokers[3] == (1, newest + 1)
