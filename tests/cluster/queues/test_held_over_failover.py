"""What queues still have to copy is there for the next leader, however long retention went on meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_large_letters import consumer, read, reject_all, send
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

COUNT = 40
RETENTION_MS = 4_000
CONFIG = {
    "group.initial.rebalance.delay.ms": "50",
    "offsets.topic.replication.factor": "2",
    "default.replication.factor": "2",
    "replica.lag.time.max.ms": "1000",
    "log.retention.check.interval.ms": "500",
}


def run(root: Path, story: Any) -> None:
    in_cluster(brokers=2, config=CONFIG)(story)(root)


def in_sync(cluster: LocalCluster, topic: str) -> tuple[int, ...]:
    return cluster.running().image.topics[topic].partitions[0].isr


def test_letters_have_their_values_though_the_leader_changes(tmp_path: Path) -> None:
    """Their topic takes none meanwhile, and no member uses the queue, so that the next leader does not load it."""

    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.create_topic("dead", 1, 2, config={"min.insync.replicas": "2"})
            follower = 3 - (await admin.describe_topic("dead")).partitions[0].leader
            resume = cluster.pause_fetching("dead", 0, follower)
            await send(cluster, "dead", [b"filler"], acks=1)  # the follower lags behind it
            await eventually(lambda: len(in_sync(cluster, "dead")) == 1, what="nothing can be written there")
            await admin.create_topic("jobs", 1, 2, config={"segment.bytes": "4000", "retention.ms": str(RETENTION_MS)})
            values = [b"%03d" % number + bytes(1_000) for number in range(COUNT)]
            await send(cluster, "jobs", values)
            await reject_all(cluster, COUNT)
            began = time.monotonic()
            leader = (await admin.describe_topic("jobs")).partitions[0].leader
            other = cluster.replica("jobs", 0, 3 - leader)._runner
            assert other is not None
            await eventually(lambda: other.machine is not None and other.machine.held_from == 0, what="it knows")
            await cluster.stop_replica("jobs", 0, leader)
            await eventually(
                lambda: time.monotonic() - began > 2 * RETENTION_MS / 1000 and other.hold.offset == 0,
                what="time passes",
            )
            assert other.log.log_start_offset == 0
            await admin.alter_topic_config("dead", set={"min.insync.replicas": "1"})
            resume()
        async with consumer(cluster):
            _, *letters = await read(cluster, "dead", 1 + COUNT)
        assert sorted(letter.value for letter in letters) == values

    run(tmp_path, story)
