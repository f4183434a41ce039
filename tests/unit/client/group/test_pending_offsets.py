"""Offsets of open transactions: what waits for their end, and how an administrator sees them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Self

import pytest

from raylog.base.errors import InvalidProducerEpoch, NonEmptyGroup, UnstableOffsetCommit
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.admin.descriptions import PendingOffset
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import AdminConfig, load
from raylog.client.consumer.committed_offsets import CommittedOffsets
from raylog.client.consumer.consumer import AsyncConsumer, Consumer
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from raylog.protocol.groups import (
    END_TXN_OFFSETS,
    TXN_OFFSET_COMMIT,
    EndTxnOffsetsRequest,
    OffsetCommitPartition,
    TxnOffsetCommitRequest,
)
from tests.unit.cli.support import raylog
from tests.unit.client.consumer_support import fill, numbers, read, with_coordinator
from tests.unit.client.toy_server import SECRET, ToyCluster

AT = TopicPartition("flights", 0)
COMMITTED = {AT: OffsetAndMetadata(5, "", 1)}


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster() as running:
        running.create_topic("flights", 2)
        with_coordinator(running)
        yield running


class Transaction:
    """What a transactional producer and its coordinator send to the group's."""

    def __init__(self, cluster: ToyCluster) -> None:
        self.client = ClusterClient(load(AdminConfig, None, cluster.options))

    async def __aenter__(self) -> Self:
        await self.client.start(5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def commit_offsets(self, epoch: int = 0) -> list[int]:
        topic = await self.client.topic("flights", timeout_s=5)
        offsets = [OffsetCommitPartition(topic.topic_id, "flights", 0, 5, 1, "")]
        request = TxnOffsetCommitRequest("board", -1, "", None, "tx", 7, epoch, offsets)
        rows = await self.client.call_coordinator("board", TXN_OFFSET_COMMIT, request, timeout_s=5)
        return [row.error_code for row in rows]

    async def end(self, committed: bool) -> None:
        request = EndTxnOffsetsRequest("board", 7, 1, 3, committed)
        await self.client.call_coordinator("board", END_TXN_OFFSETS, request, timeout_s=5)


@pytest.mark.parametrize(("committed", "found"), [(True, COMMITTED), (False, {AT: None})])
async def test_stable_offsets_wait_for_the_end_of_the_transaction(
    cluster: ToyCluster, committed: bool, found: dict[TopicPartition, Any]
) -> None:
    async with Transaction(cluster) as transaction:
        assert await transaction.commit_offsets() == [0]
        unstable = CommittedOffsets(transaction.client, "board")
        assert await unstable.fetch([AT], timeout_s=5) == {AT: None}
        stable = CommittedOffsets(transaction.client, "board", require_stable=True)
        waiting = asyncio.create_task(stable.fetch([AT], timeout_s=20))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        assert await stable.fetch([TopicPartition("flights", 1)], timeout_s=5) == {("flights", 1): None}
        await transaction.end(committed)
        assert await waiting == found


async def test_a_transaction_that_stays_open_is_named_at_the_deadline(cluster: ToyCluster) -> None:
    async with Transaction(cluster) as transaction:
        await transaction.commit_offsets()
        stable = CommittedOffsets(transaction.client, "board", require_stable=True)
        with pytest.raises(UnstableOffsetCommit, match="about to commit"):
            await stable.fetch([AT], timeout_s=0.3)


async def test_offsets_that_come_after_the_end_are_refused(cluster: ToyCluster) -> None:
    async with Transaction(cluster) as transaction:
        await transaction.end(committed=True)
        with pytest.raises(InvalidProducerEpoch, match="'tx'"):
            await transaction.commit_offsets(epoch=0)
        assert await transaction.commit_offsets(epoch=1) == [0]


async def test_an_administrator_sees_what_is_pending_and_cannot_lose_it(cluster: ToyCluster) -> None:
    async with Transaction(cluster) as transaction, AsyncAdmin(**cluster.options) as admin:
        await transaction.commit_offsets()
        found = await admin.describe_group("board")
        assert found.offsets == {}
        assert found.pending_offsets == (PendingOffset(AT, 5, 7, 0),)
        with pytest.raises(NonEmptyGroup, match="transaction"):
            await admin.delete_group("board")
        await CommittedOffsets(transaction.client, "board").commit({AT: OffsetAndMetadata(3)}, timeout_s=5)
        assert (await admin.describe_group("board")).pending_offsets == ()
        await transaction.commit_offsets()
        with pytest.raises(UnstableOffsetCommit, match="raylog group describe board"):
            await admin.delete_offsets("board", [AT])
        assert (await admin.describe_group("board")).offsets == {AT: 3}


def test_a_group_is_shown_with_its_pending_offsets(cluster: ToyCluster) -> None:
    async def begin() -> None:
        async with Transaction(cluster) as transaction:
            await transaction.commit_offsets()

    asyncio.run(begin())
    words = ("group", "describe", "board", "--bootstrap", cluster.bootstrap)
    shown = raylog(*words, RAYLOG_SECRET=SECRET.hex()).out
    assert "Offset 5 of flights-0 is pending" in shown
    assert "producer id 7 (epoch 0)" in shown
    (row,) = json.loads(raylog(*words, "--json", RAYLOG_SECRET=SECRET.hex()).out)["pending_offsets"]
    assert row == {"topic": "flights", "partition": 0, "offset": 5, "producer_id": 7, "producer_epoch": 0}


def test_a_pending_offset_whose_transaction_is_lost_is_ended_by_a_commit(cluster: ToyCluster) -> None:
    async def begin() -> None:
        async with Transaction(cluster) as transaction:
            await transaction.commit_offsets()

    asyncio.run(begin())
    at = ("--bootstrap", cluster.bootstrap)
    shown = raylog("group", "describe", "board", *at, RAYLOG_SECRET=SECRET.hex()).out
    command = "raylog group set-offset board flights --partition 0 --offset N"
    assert command in shown
    words = command.replace(" N", " 3").split()[1:]
    assert "continues with offset 3 of flights-0" in raylog(*words, *at, RAYLOG_SECRET=SECRET.hex()).out
    after = json.loads(raylog("group", "describe", "board", *at, "--json", RAYLOG_SECRET=SECRET.hex()).out)
    assert after["pending_offsets"] == []
    assert [row["committed"] for row in after["partitions"]] == [3]


def test_both_faces_of_a_consumer_name_their_group(cluster: ToyCluster) -> None:
    fill(cluster, "flights", 0, numbers(0, 5))
    options = {"auto_offset_reset": "earliest", **cluster.options}
    with Consumer("flights", group_id="board", group_instance_id="i", **options) as consumer:
        read(consumer, 5)
        found = consumer.group_metadata()
    assert (found.group_id, found.group_instance_id) == ("board", "i")
    assert found.generation_id >= 1
    assert found.member_id

    async def assigned_by_hand() -> ConsumerGroupMetadata:
        async with AsyncConsumer(group_id="other", **options) as consumer:
            consumer.assign([AT])
            return consumer.group_metadata()

    assert asyncio.run(assigned_by_hand()) == ConsumerGroupMetadata("other")
