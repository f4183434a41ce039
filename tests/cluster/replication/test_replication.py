"""Acknowledgement, the in-sync set, elections and truncation, through real replicas and sockets."""

import asyncio
import gc

from raylog.base.errors import NotEnoughReplicas, NotLeaderOrFollower, OutOfOrderSequence, RaylogError
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

QUICK_LAG = {"replica.lag.time.max.ms": "300"}


@in_cluster()
async def test_produce_is_acknowledged_by_the_leader_alone_by_all_or_not_at_all(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t")
    assert await talk.produce("t", b"one", acks=1) == 0
    assert await talk.produce("t", b"all", b"all too", acks=-1) == 1
    await talk.produce("t", b"none", acks=0)
    assert await talk.produce("t", b"last", acks=-1) == 4
    assert await talk.values("t", 5) == [b"one", b"all", b"all too", b"none", b"last"]
    for broker in (1, 2, 3):
        assert cluster.replica("t", 0, broker).status()["synced_end_offset"] == 5


@in_cluster()
async def test_followers_learn_the_high_watermark(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"a")
    await eventually(lambda: all(replica.status()["high_watermark"] == 1 for replica in cluster.replicas.values()))


@in_cluster()
async def test_a_follower_that_was_away_catches_up_and_rejoins(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    leader = (await talk.partition("t")).leader
    away = next(broker for broker in (1, 2, 3) if broker != leader)
    spec = await cluster.stop_replica("t", 0, away)
    await talk.until("t", lambda row: away not in row.isr)
    for number in range(50):
        await talk.produce("t", b"%d" % number)
    await cluster.ensure(spec)
    row = await talk.whole("t")
    assert (row.leader, row.leader_epoch) == (leader, 1), "a follower's absence moves no leadership"
    assert cluster.replica("t", 0, away).status()["log_end_offset"] == 50


@in_cluster()
async def test_the_supervisor_brings_a_missing_replica_back_by_itself(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await cluster.stop_replica("t", 0, 2)
    await talk.until("t", lambda row: 2 not in row.isr)
    await talk.whole("t")


@in_cluster()
async def test_a_replica_whose_start_is_given_up_leaves_nothing_open(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"a")
    leader = (await talk.partition("t")).leader
    away = next(broker for broker in (1, 2, 3) if broker != leader)
    spec = await cluster.stop_replica("t", 0, away)
    given_up = 0
    for turns in range(20):
        starting = asyncio.create_task(cluster.ensure(spec))
        while not any(replica.spec.broker == away and replica._opened for replica in cluster.replicas.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)  # the test counts turns of the loop
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():
            break
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        given_up += starting.cancelled()
    assert given_up, "it was met between opening its log and serving"
    await cluster.ensure(spec)
    await talk.whole("t")
    assert await talk.values("t", 1) == [b"a"]
    gc.collect()  # leaked sockets and files warn now


@in_cluster()
async def test_a_lost_leader_is_replaced_and_follows_after_its_return(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"before")
    old = (await talk.partition("t")).leader
    spec = await cluster.stop_replica("t", 0, old)
    row = await talk.until("t", lambda found: found.leader not in (old, -1))
    assert row.leader_epoch == 2
    assert await talk.produce("t", b"after") == 1
    await cluster.ensure(spec)
    row = await talk.whole("t")
    assert row.leader != old, "leadership does not move back by itself"
    assert await talk.values("t", 2) == [b"before", b"after"]
    assert cluster.replica("t", 0, old).status()["role"] == "follower"


@in_cluster()
async def test_an_old_leader_truncates_what_only_it_had(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"everywhere")
    # On a busy machine a follower may be out of sync for a moment, and get the record after it was acknowledged.
    await eventually(
        lambda: all(cluster.replica("t", 0, broker).status()["log_end_offset"] == 1 for broker in (1, 2, 3))
    )
    old = (await talk.partition("t")).leader
    others = [broker for broker in (1, 2, 3) if broker != old]
    await cluster.stop_replica("t", 0, others[0])
    spec = await cluster.stop_replica("t", 0, others[1])
    await talk.until("t", lambda row: row.isr == [old])
    await talk.produce("t", b"only", b"here", acks=1)
    await cluster.stop_replica("t", 0, old)
    await talk.until("t", lambda row: row.leader == -1)
    # Only an unclean election can remove the two lone records, and only because the topic allows it here.
    await talk.broker("alter_topic_config", ["t", {"unclean.leader.election.enable": "true"}, []])
    await cluster.ensure(spec)
    await talk.until("t", lambda row: row.leader == others[1])
    await talk.produce("t", b"instead", acks=1)
    await talk.whole("t")
    assert await talk.values("t", 2) == [b"everywhere", b"instead"]
    await eventually(lambda: cluster.replica("t", 0, old).status()["log_end_offset"] == 2)
    assert cluster.replica("t", 0, old).status()["role"] == "follower"


@in_cluster()
async def test_a_follower_refuses_clients(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    head, _ = await talk.leader("t")
    leader = (await talk.partition("t")).leader
    follower = next(broker for broker in (1, 2, 3) if broker != leader)
    endpoint = cluster.replica("t", 0, follower).endpoint
    await refused(talk.produce_at(endpoint, head, b"a"), NotLeaderOrFollower)
    await refused(talk.call(endpoint, "fetch", [*head, 0, 100, 1, 0, 0]), NotLeaderOrFollower)
    await refused(talk.call(endpoint, "list_offsets", [*head, -1]), NotLeaderOrFollower)


@in_cluster()
async def test_too_few_replicas_refuse_acks_all_and_write_nothing(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config={"min.insync.replicas": 3})
    await talk.produce("t", b"three")
    leader = (await talk.partition("t")).leader
    away = next(broker for broker in (1, 2, 3) if broker != leader)
    spec = await cluster.stop_replica("t", 0, away)
    await talk.until("t", lambda row: len(row.isr) == 2)
    error = await refused(talk.produce("t", b"two"), NotEnoughReplicas)
    assert "acks=all needs 3" in str(error)
    assert cluster.replica("t", 0, leader).status()["log_end_offset"] == 1
    await cluster.ensure(spec)
    await talk.whole("t")
    assert await talk.produce("t", b"three again") == 1


@in_cluster(config=QUICK_LAG)
async def test_a_hanging_follower_leaves_the_isr_and_blocks_no_write_for_long(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t")
    leader = (await talk.partition("t")).leader
    hanging = next(broker for broker in (1, 2, 3) if broker != leader)
    resume = cluster.pause_fetching("t", 0, hanging)
    assert await talk.produce("t", b"slow") == 0, "acknowledged once the follower that hangs has left the ISR"
    assert hanging not in (await talk.until("t", lambda row: hanging not in row.isr)).isr
    resume()
    await talk.whole("t")


@in_cluster()
async def test_an_idempotent_retry_gets_its_first_offset_after_a_leader_change(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t")
    producer, epoch = (await talk.broker("init_producer_id", [])).args
    stamp = {"producer_id": producer, "producer_epoch": epoch}
    assert await talk.produce("t", b"0", b"1", base_sequence=0, **stamp) == 0
    assert await talk.produce("t", b"2", base_sequence=2, **stamp) == 2
    assert await talk.produce("t", b"2", base_sequence=2, **stamp) == 2
    old = (await talk.partition("t")).leader
    await cluster.stop_replica("t", 0, old)
    await talk.until("t", lambda row: row.leader not in (old, -1))
    assert await talk.produce("t", b"0", b"1", base_sequence=0, **stamp) == 0
    assert await talk.produce("t", b"2", base_sequence=2, **stamp) == 2
    assert await talk.produce("t", b"3", base_sequence=3, **stamp) == 3
    await refused(talk.produce("t", b"5", base_sequence=5, **stamp), OutOfOrderSequence)
    assert await talk.values("t", 4) == [b"0", b"1", b"2", b"3"]


@in_cluster()
async def test_producer_ids_of_all_brokers_are_distinct(cluster: LocalCluster, talk: Talk) -> None:
    answers = await asyncio.gather(
        *(talk.broker("init_producer_id", [], broker) for broker in (1, 2, 3) for _ in range(20))
    )
    assert len({tuple(answer.args) for answer in answers}) == 60


@in_cluster()
async def test_nothing_acknowledged_by_all_is_lost_while_leaders_come_and_go(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    acknowledged: list[bytes] = []
    over = asyncio.Event()

    async def produce() -> None:
        number = 0
        while not over.is_set():
            number += 1
            value = b"%d" % number
            try:
                await talk.produce("t", value, timeout_ms=1000)
                acknowledged.append(value)
            except (RaylogError, OSError):
                await asyncio.sleep(0.01)

    producing = asyncio.create_task(produce())
    for _ in range(4):
        enough = len(acknowledged) + 20
        await eventually(lambda enough=enough: len(acknowledged) >= enough)  # type: ignore[misc]
        spec = await cluster.stop_replica("t", 0, (await talk.whole("t")).leader)
        await talk.until("t", lambda row, old=spec.broker: row.leader not in (old, -1))  # type: ignore[misc]
        await cluster.ensure(spec)
        await talk.whole("t")
    over.set()
    await producing
    stored = await talk.values("t", (await talk.list_offsets("t", -1))[0])
    assert set(acknowledged) <= set(stored)
    ends = {replica.status()["log_end_offset"] for replica in cluster.replicas.values()}
    assert len(ends) == 1
