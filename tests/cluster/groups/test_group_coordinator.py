"""Groups over the wire, with raw calls: rounds, offsets, restarts of the coordinator, and its zombies."""

import asyncio
from typing import Any

import pytest

from raylog.base.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRequest,
    MemberIdRequired,
    RebalanceInProgress,
    RecordTooLarge,
    UnknownMemberId,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.types import OffsetAndMetadata
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

QUICK = {"group.initial.rebalance.delay.ms": "50", "group.min.session.timeout.ms": "100"}


class Member:
    """One member of group g, joined and synced by hand."""

    def __init__(self, talk: Talk, endpoint: tuple[str, int], session_ms: int = 10_000) -> None:
        self.talk, self.endpoint, self.session_ms = talk, endpoint, session_ms
        self.id, self.generation, self.leads, self.assigned = "", -1, False, b""

    async def call(self, method: str, *args: object) -> Any:
        return (await self.talk.call(self.endpoint, method, list(args))).args

    async def join(self) -> list[Any]:
        """Join with the id issued to the first attempt; returns the members that the leader receives."""
        arguments: list[object] = [
            "g",
            self.id,
            None,
            "test",
            self.session_ms,
            10_000,
            "consumer",
            [["range", b"topics"]],
        ]
        try:
            answer = await self.call("join_group", *arguments)
        except MemberIdRequired as required:
            arguments[1] = required.details["member_id"]
            answer = await self.call("join_group", *arguments)
        self.generation, _, leader, self.id, members, _ = answer
        self.leads = leader == self.id
        return list(members)

    async def sync(self, assignments: list[list[object]] | None = None) -> None:
        (self.assigned,) = await self.call("sync_group", "g", self.generation, self.id, None, assignments or [])

    async def commit(self, offset: int, topic_id: str) -> list[Any]:
        rows = [[topic_id, "t", 0, offset, 1, "note"]]
        return list(await self.call("offset_commit", "g", self.generation, self.id, rows))

    async def committed(self, topic_id: str) -> int:
        ((_, _, _, offset, _, _),) = await self.call("offset_fetch", "g", [[topic_id, "t", 0]])
        return int(offset)


async def joined(talk: Talk) -> tuple[Member, str]:
    """Make topic t, and a group of one stable member; returns it and the topic's id."""
    topic_id = await talk.create("t")
    member = Member(talk, await talk.coordinator("g"))
    members = await member.join()
    assert [row[0] for row in members] == [member.id]
    await member.sync([[member.id, b"all of it"]])
    assert bytes(member.assigned) == b"all of it"
    return member, topic_id


@in_cluster(config=QUICK)
async def test_members_join_sync_commit_and_fetch(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    await member.call("heartbeat", "g", member.generation, member.id, None)
    assert await member.commit(17, topic_id) == [["t", 0, 0]]
    assert await member.committed(topic_id) == 17
    assert await member.call("offset_fetch", "g", None) == [[topic_id, "t", 0, 17, 1, "note"]]
    assert (await member.call("offset_fetch", "g", [[topic_id, "t", 5]]))[0][3] == -1
    await refused(member.call("heartbeat", "g", member.generation + 1, member.id, None), IllegalGeneration)
    await refused(member.call("heartbeat", "g", member.generation, "stranger", None), UnknownMemberId)
    await refused(talk.broker("find_coordinator", ["groups", "g"]), InvalidRequest)


@in_cluster(config=QUICK)
async def test_a_second_member_makes_a_new_generation(cluster: LocalCluster, talk: Talk) -> None:
    first, _ = await joined(talk)
    second = Member(talk, first.endpoint)
    joining = asyncio.create_task(second.join())
    while True:
        try:
            await first.call("heartbeat", "g", first.generation, first.id, None)
        except RebalanceInProgress:
            break
        await asyncio.sleep(0.01)
    await asyncio.gather(first.join(), joining)
    assert first.generation == second.generation == 2
    leader, other = (first, second) if first.leads else (second, first)
    await asyncio.gather(leader.sync([[leader.id, b"A"], [other.id, b"B"]]), other.sync())
    assert (bytes(leader.assigned), bytes(other.assigned)) == (b"A", b"B")
    await other.call("leave_group", "g", [[other.id, None]])
    await refused(leader.call("heartbeat", "g", 2, leader.id, None), RebalanceInProgress)


@in_cluster(config=QUICK)
async def test_a_silent_member_is_removed(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    member = Member(talk, await talk.coordinator("g"), session_ms=200)
    await member.join()
    await member.sync([[member.id, b""]])

    async def empty() -> bool:
        return not (await member.call("describe_group", "g"))["members"]

    for _ in range(500):
        if await empty():
            break
        await asyncio.sleep(0.02)
    await refused(member.call("heartbeat", "g", 1, member.id, None), UnknownMemberId)


@in_cluster(config=QUICK)
async def test_a_restarted_coordinator_keeps_offsets_and_members(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    for offset in range(1, 30):
        await member.commit(offset, topic_id)
    for _ in range(2):
        await cluster.restart_coordinator("group", 0)
        member.endpoint = await talk.coordinator("g")
        assert await member.committed(topic_id) == 29
        await member.call("heartbeat", "g", member.generation, member.id, None)
    assert await member.commit(30, topic_id) == [["t", 0, 0]]


@in_cluster(config=QUICK)
async def test_offsets_survive_a_stop_of_everything(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    await member.commit(5, topic_id)
    await cluster.stop()
    await cluster.start()
    await cluster.all_home()
    member.endpoint = await talk.coordinator("g")
    assert await member.committed(topic_id) == 5


@in_cluster(config=QUICK)
async def test_commits_go_on_through_a_change_of_the_offsets_topic_s_leader(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    await member.commit(1, topic_id)
    await talk.whole("__consumer_offsets")
    old = (await talk.partition("__consumer_offsets")).leader
    await cluster.stop_replica("__consumer_offsets", 0, old)
    assert await member.commit(2, topic_id) == [["t", 0, 0]]
    assert await member.committed(topic_id) == 2


@in_cluster(config=QUICK)
async def test_a_large_commit_is_split_into_batches_or_refused(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    await member.call("offset_commit", "other", -1, "", [[topic_id, "t", 0, 7, 1, ""]])
    epoch = cluster.coordinators[("group", 0)].epoch
    rows = [[topic_id, "t", number, number, 1, "note"] for number in range(20_000)]
    answer = await member.call("offset_commit", "g", member.generation, member.id, rows)
    assert answer == [["t", number, 0] for number in range(20_000)]
    large: list[object] = ["h", "", "i", "test", 10_000, 10_000, "consumer", [["range", bytes(1_200_000)]]]
    await refused(member.call("join_group", *large), RecordTooLarge)
    assert cluster.coordinators[("group", 0)].epoch == epoch, "the coordinator did not load its groups again"
    await cluster.restart_coordinator("group", 0)
    member.endpoint = await talk.coordinator("g")
    stored = await member.call("offset_fetch", "g", None)
    assert [row[3] for row in stored] == list(range(20_000))


@in_cluster(config={**QUICK, "log.cleaner.backoff.ms": "50"})
async def test_a_log_full_of_old_offsets_is_compacted_and_nothing_is_lost(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    async with AsyncAdmin(**cluster.clients()) as admin:
        config = (await admin.describe_topic("__consumer_offsets")).config
        assert config["cleanup.policy"] == "compact"
        await admin.alter_topic_config("__consumer_offsets", set={"segment.bytes": 4096, "file.delete.delay.ms": 0})
    await member.call("offset_commit", "quiet", -1, "", [[topic_id, "t", 0, 7, 1, "long ago"]])
    await member.call("offset_commit", "deleted", -1, "", [[topic_id, "t", 0, 7, 1, ""]])
    await member.call("offset_delete", "deleted", [[topic_id, "t", 0]])
    for offset in range(1, 300):
        await member.commit(offset, topic_id)
    leader = cluster.replica("__consumer_offsets", 0, (await talk.partition("__consumer_offsets")).leader)
    await eventually(lambda: int(str(leader.status()["size_bytes"])) < 10_000, what="the log is compacted")
    await cluster.restart_coordinator("group", 0)
    member.endpoint = await talk.coordinator("g")
    assert await member.committed(topic_id) == 299
    assert (await member.call("offset_fetch", "quiet", None))[0][3:] == [7, 1, "long ago"]
    assert await member.call("offset_fetch", "deleted", None) == []
    await member.call("heartbeat", "g", member.generation, member.id, None)
    assert await member.commit(300, topic_id) == [["t", 0, 0]]


@in_cluster(config=QUICK)
async def test_a_zombie_coordinator_is_fenced_and_ends(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    await member.commit(1, topic_id)
    zombie = cluster.coordinators.pop(("group", 0))
    cluster.cut_off(zombie)
    cluster.start_coordinator("group", 0)
    fresh = Member(talk, ("", 0))
    await eventually(lambda: cluster.coordinators[("group", 0)].endpoint[1] != 0)
    fresh.endpoint = cluster.coordinators[("group", 0)].endpoint
    deadline = asyncio.get_running_loop().time() + 15
    while True:
        try:
            assert await fresh.committed(topic_id) == 1
            break
        except CoordinatorLoadInProgress:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
    # The superseded coordinator accepts a commit, unaware; the offsets topic refuses its producer epoch.
    outcome = await asyncio.gather(member.commit(99, topic_id), return_exceptions=True)
    assert isinstance(outcome[0], Exception), outcome
    await eventually(lambda: bool(cluster.fatal), what="the zombie ends itself")
    assert "newer" in cluster.fatal[0]
    cluster.fatal.clear()
    assert await fresh.committed(topic_id) == 1
    await zombie.stop()


@in_cluster(config=QUICK)
async def test_offsets_of_named_partitions_are_deleted(cluster: LocalCluster, talk: Talk) -> None:
    zero, one = TopicPartition("flights", 0), TopicPartition("flights", 1)
    where: dict[str, Any] = {"bootstrap": cluster.bootstrap(), "secret": SECRET}
    async with AsyncAdmin(**where) as admin:
        await admin.create_topic("flights", partitions=2)
        async with AsyncConsumer(group_id="by-hand", **where) as consumer:
            consumer.assign([zero, one])
            await consumer.commit({zero: OffsetAndMetadata(3), one: OffsetAndMetadata(4)})
        await admin.delete_offsets("by-hand", [zero, ("flights", 7)])
        assert (await admin.describe_group("by-hand")).offsets == {one: 4}
        with pytest.raises(GroupIdNotFound):
            await admin.delete_offsets("no such group", [zero])


@in_cluster(config=QUICK)
async def test_a_coordinator_that_is_loading_says_so(cluster: LocalCluster, talk: Talk) -> None:
    member, topic_id = await joined(talk)
    await member.commit(1, topic_id)
    row = await talk.whole("__consumer_offsets")
    specs = [await cluster.stop_replica("__consumer_offsets", 0, broker) for broker in row.replicas]
    await cluster.restart_coordinator("group", 0)
    await eventually(lambda: cluster.coordinators[("group", 0)].endpoint[1] != 0)
    member.endpoint = cluster.coordinators[("group", 0)].endpoint
    await refused(member.committed(topic_id), CoordinatorLoadInProgress)
    for spec in specs:
        await cluster.ensure(spec)
    member.endpoint = await talk.coordinator("g")
    assert await member.committed(topic_id) == 1
