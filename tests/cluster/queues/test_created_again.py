"""A queue whose topic is deleted, missing for a while, and created again: its consumers go on by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, fill, run, send
from tests.cluster.talk import Talk
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(60)
HEARTBEAT_MS = 200


def test_a_topic_that_was_missing_for_a_while_is_worked_on_again(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, "jobs", [b"old"])
        async with (
            consumer(cluster, heartbeat_interval_ms=HEARTBEAT_MS) as worker,
            AsyncAdmin(**cluster.clients()) as admin,
        ):
            old = await worker.getone(timeout_ms=8_000)
            assert old is not None
            old.ack()
            await worker.commit()
            await admin.delete_topic("jobs")
            await eventually(lambda: not worker._engine._sources, what="the consumer has nothing to work on")
            await admin.create_topic("jobs", partitions=1, replication_factor=3)
            await send(cluster, "jobs", [b"new"])
            new = await worker.getone(timeout_ms=8_000)
            assert new is not None, "metadata_max_age_ms is five minutes"
            assert new.value == b"new"
            new.ack()

    run(tmp_path, story)
