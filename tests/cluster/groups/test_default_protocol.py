"""Without `group_protocol` a member speaks the protocol of its group, the consumer protocol where both are possible."""

import asyncio
from typing import Any

import pytest

from raylog.base.errors import InconsistentGroupProtocol
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.groups.readers import QUICK, TOPIC, Reader, readers, shared, traffic
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually


async def protocols(admin: AsyncAdmin) -> list[str]:
    return [group.group_type for group in await admin.list_groups()]


@in_cluster(config=QUICK)
async def test_members_without_a_protocol_make_a_group_of_the_consumer_protocol(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create(TOPIC, partitions=4)
    async with AsyncAdmin(**cluster.clients()) as admin, readers(cluster, 2) as group:
        await eventually(shared(group, 4))
        assert await protocols(admin) == ["consumer"]
        classic = Reader(cluster, group_protocol="classic")
        await classic.start()
        assert classic.task is not None
        with pytest.raises(InconsistentGroupProtocol, match="set group_protocol='consumer' here, or stop all") as mixed:
            await classic.task
        assert mixed.value.details["group_protocol"] == "consumer"
        await classic.close()
        named = Reader(cluster, partition_assignment_strategy="range")
        await named.start()
        assert named.task is not None
        with pytest.raises(InconsistentGroupProtocol):
            await named.task
        await named.close()


@in_cluster(config=QUICK)
async def test_a_rolling_upgrade_of_a_classic_group_stops_no_member(cluster: LocalCluster, talk: Talk) -> None:
    """Members of an earlier release leave one by one, and those of this one come: the group stays classic meanwhile.

    Once it is without members it takes the other protocol, and goes on where it was.
    """
    await talk.create(TOPIC, partitions=4)
    async with traffic(cluster, 4), AsyncAdmin(**cluster.clients()) as admin:
        old = [Reader(cluster, group_protocol="classic") for _ in range(2)]
        for reader in old:
            await reader.start()
        await eventually(shared(old, 4))
        new: list[Reader] = []
        while old:
            new.append(Reader(cluster))
            await new[-1].start()
            await eventually(shared([*old, *new], 4))
            await old.pop().close()
            await eventually(shared([*old, *new], 4))
        assert await protocols(admin) == ["classic"]
        await eventually(lambda: sum(len(reader.read) for reader in new) >= 4)
        assert not any(kind == "lost" for reader in new for kind, _ in reader.received)
        for reader in new:
            await reader.close()
        read: dict[TopicPartition, int] = {}  # a partition may have been at both, one after the other
        for reader in new:
            read |= {at: max(rows[-1][1], read.get(at, 0)) for at, rows in reader.read.items()}
        async with readers(cluster, 2) as again:
            await eventually(shared(again, 4))
            await eventually(lambda: sum(len(reader.read) for reader in again) == 4)
            assert await protocols(admin) == ["consumer"]
            begun = {at: rows[0][1] for reader in again for at, rows in reader.read.items()}
            assert all(begun[at] <= read[at] + 1 for at in begun), "from the commits of the classic group"
            assert min(begun.values()) > 0


@in_cluster(config=QUICK)
async def test_members_follow_their_group_from_one_protocol_to_the_other(cluster: LocalCluster, talk: Talk) -> None:
    """A classic member that was away, while the others of its group were all restarted, comes back as one of them."""
    await talk.create(TOPIC, partitions=2)
    async with AsyncAdmin(**cluster.clients()) as admin:
        strict = Reader(cluster, group_protocol="classic")
        await strict.start()
        await eventually(shared([strict], 2))
        follower = Reader(cluster, session_timeout_ms=400, heartbeat_interval_ms=100)
        await follower.start()
        await eventually(shared([strict, follower], 2))
        engine = follower.consumer._engine
        assert engine.group is not None
        assert engine.group._heart is not None
        engine.group._heart.cancel()  # as if its process slept: its session ends
        await follower.stop_polling()
        await eventually(shared([strict], 2))
        await strict.close()
        async with readers(cluster, 1) as (new,):
            await eventually(shared([new], 2))
            engine.group._heart = None  # it wakes
            follower.task = asyncio.create_task(follower._poll())
            await eventually(shared([new, follower], 2))
            assert await protocols(admin) == ["consumer"]
            assert [kind for kind, _ in follower.received] == ["assigned", "lost", "assigned"]
        await follower.close()


@in_cluster(config=QUICK)
async def test_a_pattern_a_transaction_and_a_static_member_meet_the_default(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create(TOPIC, partitions=2)
    await talk.create("out", partitions=1)
    clients = cluster.clients()
    async with (
        AsyncAdmin(**clients) as admin,
        AsyncProducer(transactional_id="copy", **clients) as producer,
        AsyncProducer(**clients) as source,
    ):
        for number in range(2):
            await (await source.send(TOPIC, b"x", partition=number))
        options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = AsyncConsumer(group_id="copies", group_instance_id="copier", **options, **clients)
        await consumer.start()
        consumer.subscribe(pattern="fli.*")
        await producer.init_transactions()
        seen: dict[TopicPartition, int] = {}
        async with asyncio.timeout(20):
            while len(seen) < 2:
                for at, records in (await consumer.getmany(timeout_ms=100)).items():
                    seen[at] = records[-1].offset + 1
        await producer.begin_transaction()
        await (await producer.send("out", b"y"))
        await producer.send_offsets_to_transaction(seen, consumer.group_metadata())
        await producer.commit_transaction()
        assert {at: await consumer.committed(at) for at in seen} == seen
        found = await admin.describe_group("copies")
        assert (found.group_type, found.members[0].instance_id) == ("consumer", "copier")
        await consumer.stop()
        left = await admin.describe_group("copies")
        assert [each.instance_id for each in left.members] == ["copier"], "a static member keeps its place"
        await admin.remove_members("copies", instances=["copier"])
        assert (await admin.describe_group("copies")).members == ()
