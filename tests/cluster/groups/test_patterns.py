"""Subscription by pattern in both group protocols: the members match, the coordinator assigns what they name."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

QUICK = {"group.initial.rebalance.delay.ms": "50"}


class Reader:
    """A member that polls all the time; topics that are deleted under it are no failure."""

    def __init__(self, cluster: LocalCluster, pattern: str, **config: Any) -> None:
        quick: dict[str, Any] = {"heartbeat_interval_ms": 100, "metadata_max_age_ms": 100}
        self.consumer = AsyncConsumer(group_id="board", **quick, **config, **cluster.clients())
        self._pattern = pattern
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self.consumer.subscribe(pattern=self._pattern)
        self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            await self.consumer.getmany(timeout_ms=50)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.stop()

    def reads(self) -> set[str]:
        return {f"{topic}-{number}" for topic, number in self.consumer.assignment()}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_with_other_patterns_share_what_both_match(protocol: str, tmp_path: Path) -> None:
    @in_cluster(config=QUICK)
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await talk.create("flights-ua", partitions=2)
        await talk.create("trips", partitions=1)
        every, flights = (Reader(cluster, pattern, group_protocol=protocol) for pattern in (".*", "flights-.*"))
        await every.start()
        await flights.start()
        async with AsyncAdmin(**cluster.clients()) as admin:
            await eventually(lambda: every.reads() | flights.reads() == {"flights-ua-0", "flights-ua-1", "trips-0"})
            await eventually(lambda: "trips-0" in every.reads() and len(flights.reads()) > 0)
            await talk.create("flights-dl", partitions=2)  # both patterns match it
            await eventually(lambda: {"flights-dl-0", "flights-dl-1"} <= every.reads() | flights.reads())
            await talk.create("cities", partitions=1)
            await eventually(lambda: "cities-0" in every.reads())
            await admin.delete_topic("flights-ua")
            left = {"flights-dl-0", "flights-dl-1", "trips-0", "cities-0"}
            await eventually(lambda: every.reads() | flights.reads() == left)
            assert not every.reads() & flights.reads()
        await every.close()
        await flights.close()

    story(tmp_path)
