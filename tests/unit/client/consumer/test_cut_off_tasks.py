"""A consumer whose tasks a framework cancels, before their first step or amid them: it goes on reading."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from raylog.base.errors import ConnectionFailed, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.types import OffsetAndMetadata
from tests.unit.client.consumer_support import fill, numbers, with_coordinator
from tests.unit.client.cut_off import unborn
from tests.unit.client.toy_replica import ToyReplica
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import eventually

WAIT_S = 10.0
OPTIONS: dict[str, Any] = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 300_000}


@pytest.mark.parametrize("name", ["PositionFinder._search", "AsyncConsumer._made", "ConsumerSession._beat"])
async def test_a_member_reads_on_when_a_task_of_its_is_cut_off(cluster: ToyCluster, name: str) -> None:
    with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    calls: list[list[TopicPartition]] = []
    async with AsyncConsumer(**cluster.options, group_id="g", **OPTIONS) as consumer:
        consumer.subscribe(["t"], on_assigned=calls.append)
        with unborn(name) as cut:
            assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).offset == 0
    assert cut
    assert calls == [[TopicPartition("t", 0)]]


@pytest.mark.parametrize("name", ["PositionFinder._search", "SubscribedTopics._learn", "SubscribedTopics._discover"])
async def test_a_consumer_without_a_group_reads_on(cluster: ToyCluster, name: str) -> None:
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    async with AsyncConsumer(**cluster.options, **OPTIONS) as consumer:
        consumer.subscribe(["t"])
        with unborn(name) as cut:
            assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).offset == 0
    assert cut


async def test_a_listener_that_is_cut_off_amid_its_work_is_called_again(cluster: ToyCluster) -> None:
    with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    tasks: list[asyncio.Task[Any] | None] = []
    async with AsyncConsumer(**cluster.options, group_id="g", **OPTIONS) as consumer:

        async def assigned(_: list[TopicPartition]) -> None:
            tasks.append(asyncio.current_task())
            await asyncio.sleep(0 if len(tasks) > 1 else 60)

        consumer.subscribe(["t"], on_assigned=assigned)
        poll = asyncio.create_task(consumer.getone())
        await eventually(lambda: bool(tasks))
        assert tasks[0] is not None
        tasks[0].cancel()
        assert (await asyncio.wait_for(poll, WAIT_S)).offset == 0
    assert len(tasks) == 2


async def test_a_listener_that_raises_a_cancellation_of_its_own_is_called_once(cluster: ToyCluster) -> None:
    with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    calls: list[int] = []
    async with AsyncConsumer(**cluster.options, group_id="g", **OPTIONS) as consumer:

        async def assigned(_: list[TopicPartition]) -> None:
            calls.append(1)
            raise asyncio.CancelledError

        consumer.subscribe(["t"], on_assigned=assigned)
        with pytest.raises(asyncio.CancelledError):
            await consumer.getone()
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).offset == 0
    assert calls == [1]


@pytest.mark.parametrize("name", ["CommittedOffsets.commit_and_report"])
async def test_the_callback_of_a_commit_that_is_cut_off_is_called(cluster: ToyCluster, name: str) -> None:
    with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    seen: list[RaylogError | None] = []

    def committed(_: Mapping[TopicPartition, OffsetAndMetadata], error: RaylogError | None) -> None:
        seen.append(error)

    async with AsyncConsumer("t", **cluster.options, group_id="g", **OPTIONS) as consumer:
        await asyncio.wait_for(consumer.getone(), WAIT_S)
        with unborn(name) as cut:
            consumer.commit_nowait(callback=committed)
        await eventually(lambda: bool(seen))
        consumer.commit_nowait(callback=committed)
        await eventually(lambda: len(seen) == 2)
    assert cut
    assert isinstance(seen[0], ConnectionFailed)
    assert seen[1] is None


async def test_a_leader_that_hangs_is_left_though_the_look_out_was_cut_off(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    first_epoch = cluster.partitions["t", 0].leader_epoch
    answer = ToyReplica._fetch
    unanswered: list[Any] = []

    async def hang_in_the_first_epoch(replica: ToyReplica, request: Any) -> None:
        if replica.partition.leader_epoch == first_epoch:
            unanswered.append(request)
        else:
            await answer(replica, request)

    monkeypatch.setattr(ToyReplica, "_fetch", hang_in_the_first_epoch)
    async with AsyncConsumer("t", **cluster.options, request_timeout_ms=60_000, **OPTIONS) as consumer:
        poll = asyncio.create_task(consumer.getone())
        await eventually(lambda: bool(unanswered))
        with unborn("FetchStream._watch_leader") as cut:
            await eventually(lambda: bool(cut))
        cluster.move_leader("t", 0, silently=True)
        fill(cluster, "t", 0, numbers(0, 3))
        assert (await asyncio.wait_for(poll, WAIT_S)).offset == 0
