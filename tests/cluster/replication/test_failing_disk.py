"""A disk that keeps refusing appends: another replica leads, no request waits for it, and free space restores it."""

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import NoReturn

from raylog.base.errors import KafkaStorageError, RaylogError, StaleMetadataError
from raylog.core.replication.disk import PATIENCE_MS
from raylog.storage.errors import DiskFull, StorageIoError
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually


def break_disk(cluster: LocalCluster, topic: str, broker: int, error: RaylogError) -> Callable[[], None]:
    """Make every append of a replica fail until the returned function is called."""
    log = cluster.replica(topic, 0, broker)._running().log

    def refuse(*_: object) -> NoReturn:
        raise error

    log.append_as_leader = refuse  # type: ignore[method-assign, assignment]
    log.append_as_follower = refuse  # type: ignore[method-assign, assignment]

    def repair() -> None:
        del log.append_as_leader, log.append_as_follower

    return repair


def full() -> DiskFull:
    return DiskFull("append", OSError(errno.ENOSPC, "No space left on device"))


async def produce_until_stored(talk: Talk) -> int:
    """Produce one record as a client does, with retries; returns its offset."""
    while True:
        try:
            return await talk.produce("t", b"after")
        except (KafkaStorageError, StaleMetadataError):
            continue  # each attempt is a call to the current leader


@in_cluster()
async def test_a_leader_with_a_full_disk_resigns_and_rejoins_the_isr_later(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"before")
    old = (await talk.partition("t")).leader
    repair = break_disk(cluster, "t", old, full())
    assert await produce_until_stored(talk) == 1
    row = await talk.until("t", lambda found: old not in found.isr and found.port > 0)
    leader = row.leader
    assert row.leader_epoch == 2, "leadership moves once"
    for number in range(5):
        assert await talk.produce("t", b"more") == 2 + number, "no request waits for the full disk"
    repair()
    row = await talk.whole("t")
    assert (row.leader, row.leader_epoch) == (leader, 2)
    assert cluster.replica("t", 0, old).status()["log_end_offset"] == 7


@in_cluster()
async def test_a_leader_with_a_broken_disk_resigns_and_blocks_no_request(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    old = (await talk.partition("t")).leader
    break_disk(cluster, "t", old, StorageIoError("append", OSError(errno.EIO, "Input/output error")))
    assert await produce_until_stored(talk) == 0
    row = await talk.until("t", lambda found: old not in found.isr)
    assert (row.leader != old, row.leader_epoch) == (True, 2)


@in_cluster()
async def test_a_follower_without_room_holds_acks_all_up_for_a_moment_only(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    leader = (await talk.partition("t")).leader
    follower = next(broker for broker in (1, 2, 3) if broker != leader)
    repair = break_disk(cluster, "t", follower, full())
    assert await talk.produce("t", b"one", timeout_ms=9_000) == 0
    assert follower not in (await talk.until("t", lambda row: follower not in row.isr)).isr
    repair()
    await talk.whole("t")


@in_cluster(brokers=1)
async def test_a_single_replica_leads_on_and_goes_on_when_there_is_room(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    await talk.produce("t", b"before")
    repair = break_disk(cluster, "t", 1, full())
    until = asyncio.get_running_loop().time() + 1.5 * PATIENCE_MS / 1000
    while asyncio.get_running_loop().time() < until:
        error = await refused(talk.produce("t", b"x"), KafkaStorageError)
        assert "Free some space" in str(error)
        assert [value for _, value in (await talk.fetch("t")).records] == [b"before"], "reading goes on"
    assert (await talk.partition("t")).leader == 1
    repair()
    assert await talk.produce("t", b"after") == 1


@in_cluster(config={"replica.sync.time.max.ms": "300", "broker.heartbeat.interval.ms": "100"})
async def test_a_leader_whose_disk_hangs_gives_way_and_is_named(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t")
    await talk.produce("t", b"before")
    old = (await talk.partition("t")).leader
    opened, ends = cluster.replica("t", 0, old)._opened, threading.Event()
    assert opened is not None
    log, real = opened.log, opened.log.sync_records

    def hang() -> int:
        assert ends.wait(30)
        return real()

    log.sync_records = hang  # type: ignore[method-assign]
    try:
        stuck = asyncio.create_task(refused(talk.produce("t", b"stuck"), StaleMetadataError))
        row = await talk.until("t", lambda found: found.leader not in (-1, old) and found.port > 0)
        assert old not in row.isr
        await stuck
        assert await talk.produce("t", b"after", acks=-1) >= 1

        def named() -> bool:
            found = cluster.running()._running().machine._description()["hanging_disks"]
            return isinstance(found, list) and [entry[:2] for entry in found] == [["t-0", old]]

        await eventually(named, what="the disk that hangs is in the description")
    finally:
        ends.set()
        log.sync_records = real  # type: ignore[method-assign]
    await talk.whole("t")
    await eventually(
        lambda: not cluster.running()._running().machine._description()["hanging_disks"], what="it goes on"
    )
