"""For which member and generation a commit is made, and its order among others."""

import asyncio
from typing import Any, cast

import pytest

from raylog.base.errors import CommitFailed, InvalidGroupId, RaylogError, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.metadata import TopicInfo
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.committed_offsets import CommittedOffsets
from raylog.client.consumer.engine import ConsumerEngine
from raylog.client.group.membership import Membership
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from raylog.protocol.groups import OffsetCommitRequest, OffsetFetchResult

AT = TopicPartition("t", 0)


class Coordinator:
    """What a commit sees as its `ClusterClient`: keeps the requests, answers when the test lets it."""

    def __init__(self) -> None:
        self.requests: list[OffsetCommitRequest] = []
        self.may_answer = asyncio.Event()
        self.answers: list[Any] = []

    async def topic(self, name: str, *, timeout_s: float, may_create: bool = True) -> TopicInfo:
        return TopicInfo("id", name, internal=False, partitions=(), config={}, version=1)

    async def topic_with(self, name: str, _: int, *, timeout_s: float, may_create: bool = True) -> TopicInfo:
        return await self.topic(name, timeout_s=timeout_s)

    async def call_coordinator(self, group: str, _: object, request: OffsetCommitRequest, **__: Any) -> list[Any]:
        self.requests.append(request)
        await self.may_answer.wait()
        return self.answers


def member(generation: int) -> Membership:
    found = Membership("g", client_id="c")
    found.member_id, found.owned_generation = "m", generation
    return found


async def test_a_commit_behind_another_counts_for_the_generation_of_its_call() -> None:
    coordinator = Coordinator()
    committed = CommittedOffsets(cast(ClusterClient, coordinator), "g")
    committed.membership = member(3)
    calls = []
    for offset in (1, 2):
        speaker = committed.speaker()
        offsets = {AT: OffsetAndMetadata(offset)}
        calls.append(asyncio.create_task(committed.commit_and_report(offsets, None, speaker, timeout_s=5)))
    committed.membership.owned_generation = 4
    coordinator.may_answer.set()
    await asyncio.gather(*calls)
    assert [(request.generation_id, request.offsets[0].committed_offset) for request in coordinator.requests] == [
        (3, 1),
        (3, 2),
    ]


async def test_commits_are_sent_one_at_a_time() -> None:
    coordinator = Coordinator()
    committed = CommittedOffsets(cast(ClusterClient, coordinator), "g")
    calls = [asyncio.create_task(committed.commit({AT: OffsetAndMetadata(at)}, timeout_s=5)) for at in (1, 2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(coordinator.requests) == 1
    coordinator.may_answer.set()
    await asyncio.gather(*calls)
    assert len(coordinator.requests) == 2


async def test_an_automatic_commit_is_left_out_while_another_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    engine = ConsumerEngine(ConsumerConfig(group_id="g"))
    engine.committed = CommittedOffsets(cast(ClusterClient, coordinator), "g")
    monkeypatch.setattr(engine, "positions", lambda: {AT: OffsetAndMetadata(1)})
    engine._commit_in_background()
    engine._commit_in_background()
    assert len(engine._tasks) == 1
    coordinator.may_answer.set()
    await asyncio.gather(*engine._tasks)
    engine._commit_in_background()
    await asyncio.gather(*engine._tasks)
    assert len(coordinator.requests) == 2


async def test_offsets_of_an_earlier_topic_are_not_committed_for_the_next() -> None:
    coordinator = Coordinator()
    coordinator.may_answer.set()
    committed = CommittedOffsets(cast(ClusterClient, coordinator), "g")
    offsets = {
        AT: OffsetAndMetadata(7, topic_id="an earlier id"),
        TopicPartition("t", 1): OffsetAndMetadata(8, topic_id="id"),
        TopicPartition("t", 2): OffsetAndMetadata(9),
    }
    with pytest.raises(UnknownTopicOrPartition, match="created again"):
        await committed.commit(offsets, timeout_s=5)
    [request] = coordinator.requests
    assert [(row.partition, row.committed_offset) for row in request.offsets] == [(1, 8), (2, 9)]


async def test_a_committed_position_carries_the_id_of_its_topic() -> None:
    """The topic that has the name when the partition is fetched may be another one by then."""
    coordinator = Coordinator()
    coordinator.answers = [OffsetFetchResult("id", "t", 0, 5, 3, "")]
    coordinator.may_answer.set()
    committed = CommittedOffsets(cast(ClusterClient, coordinator), "g")
    found = (await committed.fetch([AT], timeout_s=5))[AT]
    assert found == OffsetAndMetadata(5, "", 3)
    assert found.topic_id == "id"


async def test_a_member_without_a_generation_commits_nothing() -> None:
    coordinator = Coordinator()
    committed = CommittedOffsets(cast(ClusterClient, coordinator), "g")
    committed.membership = member(-1)
    with pytest.raises(CommitFailed, match="not a member"):
        await committed.commit({AT: OffsetAndMetadata(1)}, timeout_s=5)
    assert not coordinator.requests


async def test_an_error_in_the_users_callback_ends_there() -> None:
    coordinator = Coordinator()
    coordinator.may_answer.set()
    committed = CommittedOffsets(cast(ClusterClient, coordinator), "g")
    seen: list[RaylogError | None] = []

    def callback(_: object, error: RaylogError | None) -> None:
        seen.append(error)
        raise ValueError("the user's")

    offsets = {AT: OffsetAndMetadata(1)}
    await committed.commit_and_report(offsets, callback, committed.speaker(), timeout_s=5)
    assert seen == [None]


def test_a_member_names_its_generation_to_a_transaction() -> None:
    committed = CommittedOffsets(cast(ClusterClient, Coordinator()), "g")
    assert committed.group_metadata() == ConsumerGroupMetadata("g", -1, "", None)
    committed.membership = member(3)
    committed.membership.instance_id = "i"
    assert committed.group_metadata() == ConsumerGroupMetadata("g", 3, "m", "i")


def test_a_consumer_that_is_no_member_names_none_to_a_transaction() -> None:
    committed = CommittedOffsets(cast(ClusterClient, Coordinator()), "g")
    committed.membership = member(-1)
    with pytest.raises(CommitFailed, match="not a member"):
        committed.group_metadata()
    with pytest.raises(InvalidGroupId, match="group_id"):
        CommittedOffsets(cast(ClusterClient, Coordinator()), None).group_metadata()


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
async def test_a_consumer_wants_stable_offsets(level: str) -> None:
    engine = ConsumerEngine(ConsumerConfig(group_id="g", isolation_level=level))
    coordinator = Coordinator()
    coordinator.may_answer.set()
    engine.committed._cluster = cast(ClusterClient, coordinator)
    assert await engine.committed.fetch([AT], timeout_s=5) == {AT: None}
    assert [cast(Any, request).require_stable for request in coordinator.requests] == [True]
