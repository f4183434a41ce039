"""Elections by command, eligible leaders, a broker that is stopped under load: through real replicas and clients."""

import asyncio
import time
from typing import Any

import pytest

import raylog
from raylog.base.ids import TopicPartition
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

T0 = TopicPartition("t", 0)


async def read(consumer: raylog.AsyncConsumer, count: int) -> list[raylog.Record]:
    found: list[raylog.Record] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += records
    return found


@in_cluster()
async def test_leadership_goes_back_by_command_and_loses_nothing(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    first = (await talk.partition("t")).leader
    spec = await cluster.stop_replica("t", 0, first)
    await talk.until("t", lambda row: row.leader not in (-1, first))
    await talk.produce("t", b"one", acks=-1)
    await cluster.ensure(spec)
    await talk.whole("t")
    async with raylog.AsyncAdmin(**cluster.clients()) as admin, raylog.AsyncProducer(**cluster.clients()) as producer:
        pending = [await producer.send("t", b"%d" % number) for number in range(200)]
        assert await admin.elect_leaders() == {T0: None}
        for future in pending:
            await future
        assert await admin.elect_leaders() == {}
        [(_, error)] = (await admin.elect_leaders([("t", 0)])).items()
        assert isinstance(error, raylog.ElectionNotNeeded)
    await talk.until("t", lambda row: row.leader == first)
    assert len(await talk.values("t", 201)) == 201


@in_cluster()
async def test_an_eligible_replica_leads_with_everything_that_was_acknowledged(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t")
    row = await talk.whole("t")
    second, third = (broker for broker in row.replicas if broker != row.leader)
    await cluster.stop_replica("t", 0, third)
    await talk.until("t", lambda found: third not in found.isr)
    await talk.produce("t", b"kept", acks=-1)
    spec = await cluster.stop_replica("t", 0, second)
    await talk.until("t", lambda found: found.elr == [second])
    await cluster.stop_replica("t", 0, row.leader)
    await talk.until("t", lambda found: found.leader == -1)
    await cluster.ensure(spec)
    led = await talk.until("t", lambda found: found.leader == second)
    assert led.unclean_leader_epoch == 0
    assert await talk.values("t", 1) == [b"kept"], "with one replica of three"
    await talk.whole("t")
    assert await talk.values("t", 1) == [b"kept"]


@in_cluster()
async def test_an_unclean_election_by_command_is_marked_in_every_view(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config={"min.insync.replicas": 1})
    row = await talk.whole("t")
    second, third = (broker for broker in row.replicas if broker != row.leader)
    spec = await cluster.stop_replica("t", 0, second)
    await cluster.stop_replica("t", 0, third)
    await talk.until("t", lambda found: found.isr == [row.leader])
    await talk.produce("t", b"gone", acks=-1)
    consumer = raylog.AsyncConsumer("t", auto_offset_reset="earliest", **cluster.clients())
    await consumer.start()
    assert [record.value for record in await read(consumer, 1)] == [b"gone"]
    for broker in (row.leader, second, third):
        cluster.broker_servers[broker]._supervisor._needs_start = lambda *_, **__: False  # type: ignore[union-attr, method-assign]
    await cluster.stop_replica("t", 0, row.leader)
    await cluster.ensure(spec)
    await talk.until("t", lambda found: found.leader == -1)
    async with raylog.AsyncAdmin(**cluster.clients()) as admin:
        assert await admin.elect_leaders([T0], unclean=True) == {T0: None}
        found = await talk.until("t", lambda found: found.leader == second)
        assert found.unclean_leader_epoch == found.leader_epoch
        assert (await admin.describe_topic("t")).partitions[0].unclean_leader_epoch == found.leader_epoch
        details = (await admin.describe_cluster()).details
    assert details["unclean_partitions"] == [["t-0", found.leader_epoch]]
    await talk.produce("t", b"other")
    await talk.produce("t", b"more")
    again = [(record.offset, record.value) for record in await read(consumer, 2)]
    await consumer.stop()
    assert again == [(0, b"other"), (1, b"more")], "it does not go on in the middle of another history (KIP-320)"


@in_cluster()
async def test_a_broker_stops_and_returns_under_load_and_no_request_fails(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", partitions=3)
    leads = {number: (await talk.partition("t", number)).leader for number in range(3)}
    broker = leads[0]
    others = [item for item in (1, 2, 3) if item != broker]
    places = {"bootstrap": ",".join(f"127.0.0.1:{cluster.broker_servers[other].endpoint[1]}" for other in others)}
    reach: dict[str, Any] = {**places, "secret": SECRET}
    sent: list[bytes] = []
    slowest = 0.0
    done = asyncio.Event()

    async def load() -> None:
        nonlocal slowest
        async with raylog.AsyncProducer(**reach, acks="all") as producer:
            while not done.is_set():
                value = b"%d" % len(sent)
                begun = time.monotonic()
                await (await producer.send("t", value, partition=len(sent) % 3))
                slowest = max(slowest, time.monotonic() - begun)
                sent.append(value)

    read: list[bytes | None] = []

    async def follow() -> None:
        async with raylog.AsyncConsumer("t", auto_offset_reset="earliest", group_id="g", **reach) as consumer:
            while not done.is_set() or len(read) < len(sent):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    read.extend(record.value for record in records)

    async with raylog.AsyncAdmin(**reach) as admin, asyncio.TaskGroup() as group:
        group.create_task(load())
        group.create_task(follow())
        await eventually(lambda: len(read) > 50, what="records flow")
        stopped = await admin.stop_broker(broker)
        assert stopped.leaders_moved >= sum(leader == broker for leader in leads.values())
        assert not stopped.leaderless
        await eventually(
            lambda: not any(replica.spec.broker == broker for replica in cluster.replicas.values()),
            what="its replicas end",
        )
        await cluster.stop_broker(broker)
        without = len(sent)
        await eventually(lambda: len(sent) > without + 100, what="the others go on")
        described = await admin.describe_cluster()
        assert [broker.broker for broker in described.stopped_brokers] == [broker]
        for number in range(3):
            assert broker not in (await talk.partition("t", number)).isr
        await admin.resume_broker(broker)
        await cluster.start_broker(broker)
        for number in range(3):
            await talk.whole("t", number)
        await eventually(lambda: len(sent) > without + 200, what="records flow again")
        done.set()
    assert sorted(value for value in read if value is not None) == sorted(sent), "each record once"
    print(f"slowest acknowledgement {slowest * 1000:.0f} ms over {len(sent)} records")
    assert slowest < 3.0
    view = (await talk.call(cluster.broker_servers[others[0]].endpoint, "describe_cluster", [])).args
    assert view["brokers"][broker - 1]["stopped"] is False


@in_cluster()
async def test_a_broker_with_the_only_copy_is_not_stopped_without_force(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    leader = (await talk.partition("t")).leader
    async with raylog.AsyncAdmin(**cluster.clients()) as admin:
        with pytest.raises(raylog.StopRefused, match="no replica could lead t-0"):
            await admin.stop_broker(leader)
        with pytest.raises(raylog.InvalidRequest, match="There is no broker 7"):
            await admin.stop_broker(7)
        stopped = await admin.stop_broker(leader, force=True)
        assert stopped.leaderless == ("t-0",)
        await admin.resume_broker(leader)
    await talk.whole("t")
