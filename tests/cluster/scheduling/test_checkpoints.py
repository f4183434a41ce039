"""Checkpoints that are larger than a row, through the real role and its log."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.scheduling import role
from raylog.actors.scheduling.rows import pieces
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.producer.producer import AsyncProducer
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.core.scheduling.settings import SchedulerSettings
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.scheduling.test_limits import in_ms, read, run
from tests.cluster.talk import Talk
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)


def test_a_leader_begins_with_a_checkpoint_of_several_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "pieces", partial(pieces, part_bytes=1_000))
    monkeypatch.setattr(role.SchedulerRole, "settings", SchedulerSettings(checkpoint_bytes=20_000))

    def scheduler(cluster: LocalCluster) -> Any:
        (found,) = [
            each
            for each in cluster.replica(SCHEDULED_TOPIC, 0, 1)._roles._roles
            if isinstance(each, role.SchedulerRole)
        ]
        return found

    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin, AsyncProducer(**cluster.clients()) as producer:
            await admin.create_topic("t", 1, 1)
            due = in_ms(10_000)
            futures = [
                await producer.send("t", b"%04d" % number, deliver_at=due, partition=0) for number in range(2_000)
            ]
            await asyncio.gather(*futures)
            await eventually(lambda: scheduler(cluster).machine._checkpoint_bytes > 5_000, timeout_s=20)
            spec = await cluster.stop_replica(SCHEDULED_TOPIC, 0, 1)
            await cluster.ensure(spec)
            got = [int(record.value) for record in await read(cluster, "t", 2_000)]
            assert got == list(range(2_000))

    run(tmp_path, story)
