"""What consumers see: offsets by time, long polls, and nothing above the high watermark."""

import asyncio

from raylog.base.errors import FencedLeaderEpoch, OffsetOutOfRange, UnknownLeaderEpoch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

EARLIEST, LATEST, LARGEST = -2, -1, -3


@in_cluster(brokers=1)
async def test_offsets_are_found_by_time_and_at_both_ends(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    assert await talk.list_offsets("t", LATEST) == (0, -1)
    assert await talk.list_offsets("t", 5) == (-1, -1)
    for at in (1000, 3000, 2000):
        await talk.produce("t", b"a", b"b", timestamp_ms=at)
    assert await talk.list_offsets("t", EARLIEST) == (0, -1)
    assert await talk.list_offsets("t", LATEST) == (6, -1)
    assert await talk.list_offsets("t", LARGEST) == (2, 3000)
    assert await talk.list_offsets("t", 1000) == (0, 1000)
    assert await talk.list_offsets("t", 1001) == (2, 3000)
    assert await talk.list_offsets("t", 3001) == (-1, -1)


@in_cluster()
async def test_a_long_poll_wakes_up_within_milliseconds_of_a_produce(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    loop, delays = asyncio.get_running_loop(), []
    for number in range(20):
        polling = asyncio.create_task(talk.fetch("t", number, max_wait_ms=5000))
        head, endpoint = await talk.leader("t")
        await asyncio.sleep(0)
        await talk.produce_at(endpoint, head, b"%d" % number)
        acknowledged = loop.time()
        fetched = await polling
        delays.append(loop.time() - acknowledged)
        assert fetched.records == [(number, b"%d" % number)]
        assert fetched.high_watermark == number + 1
    delays.sort()
    assert delays[len(delays) // 2] < 0.02, delays


@in_cluster()
async def test_a_long_poll_ends_empty_at_its_deadline(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    began = asyncio.get_running_loop().time()
    assert (await talk.fetch("t", max_wait_ms=200)).records == []
    assert 0.15 < asyncio.get_running_loop().time() - began < 2


@in_cluster(config={"replica.lag.time.max.ms": "60000"})
async def test_a_consumer_never_sees_above_the_high_watermark(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"committed")
    leader = (await talk.partition("t")).leader
    resumes = [cluster.pause_fetching("t", 0, broker) for broker in (1, 2, 3) if broker != leader]
    assert await talk.produce("t", b"on the leader alone", acks=1) == 1
    fetched = await talk.fetch("t", 0, max_wait_ms=100)
    assert (fetched.records, fetched.high_watermark) == ([(0, b"committed")], 1)
    assert (await talk.fetch("t", 1, max_wait_ms=100)).records == []
    assert await talk.list_offsets("t", LATEST) == (1, -1)
    polling = asyncio.create_task(talk.fetch("t", 1, max_wait_ms=9000))
    for resume in resumes:
        resume()
    assert (await polling).records == [(1, b"on the leader alone")]


@in_cluster(brokers=1)
async def test_offsets_outside_the_log_are_refused_with_its_bounds(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    await talk.produce("t", b"a")
    for offset in (-1, 2, 2**62):
        error = await refused(talk.fetch("t", offset), OffsetOutOfRange)
        assert (error.details["start"], error.details["end"]) == (0, 1)
    assert (await talk.fetch("t", 1)).records == []


@in_cluster()
async def test_wrong_leader_epochs_are_refused(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    head, endpoint = await talk.leader("t")
    for method, tail in (("fetch", [0, 100, 1, 0, 0]), ("list_offsets", [-1])):
        await refused(talk.call(endpoint, method, [*head[:2], 0, *tail]), FencedLeaderEpoch)
        await refused(talk.call(endpoint, method, [*head[:2], 9, *tail]), UnknownLeaderEpoch)
        await talk.call(endpoint, method, [*head[:2], -1, *tail])
    await refused(talk.produce_at(endpoint, [*head[:2], 0], b"a"), FencedLeaderEpoch)
    await refused(talk.produce_at(endpoint, [*head[:2], 9], b"a"), UnknownLeaderEpoch)


@in_cluster(brokers=1)
async def test_a_consumer_that_hangs_up_in_its_long_poll_is_forgotten(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    head, endpoint = await talk.leader("t")
    connection = await talk.connection(endpoint)
    for _ in range(10):
        connection.call_nowait("fetch", [*head, 0, 100, 1, 2**40, 0], timeout_s=30).add_done_callback(
            lambda done: done.exception()
        )
    replica = cluster.replica("t", 0, 1)
    await eventually(lambda: replica.status()["parked_fetches"] == 10)
    connection.close("gone")
    await eventually(
        lambda: replica.status()["parked_fetches"] == 0, what="no fetch waits for a consumer that has left"
    )


@in_cluster(brokers=1)
async def test_fetches_are_bounded_whatever_they_request(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    for _ in range(5):
        await talk.produce("t", b"x" * 1_000_000)
    assert len((await talk.fetch("t", 0, max_bytes=2**62)).records) == 5
    assert len((await talk.fetch("t", 0, max_bytes=-5)).records) == 1, "at least one batch, to get on"
