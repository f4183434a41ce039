"""One bit flips in a file of one replica of three: every record is read, operators see it, the replica is mended."""

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from raylog import AsyncConsumer, TopicPartition
from raylog.actors.actor_specs import ReplicaSpec
from raylog.base.errors import CorruptMessage
from raylog.storage.log.partition_log import PartitionLog
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

RECORDS = 400
CONFIG = {"segment.bytes": 4_096, "index.interval.bytes": 512}
READ_S = 5.0
VALUES = [b"record %04d" % number for number in range(RECORDS)]


def folder_of(spec: ReplicaSpec) -> Path:
    return spec.data_directory / f"{spec.topic}-{spec.partition}"


def flip(path: Path, dice: random.Random, low: float = 0.0, high: float = 1.0) -> None:
    data = bytearray(path.read_bytes())
    at = dice.randrange(int(low * len(data)), max(1, int(high * len(data))))
    data[at] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


async def filled(talk: Talk, **config: object) -> None:
    await talk.create("t", config={**CONFIG, **config})
    for number in range(0, RECORDS, 4):
        await talk.produce("t", *VALUES[number : number + 4])
    await talk.whole("t")


async def leading(cluster: LocalCluster, talk: Talk, broker: int) -> None:
    """Have this broker lead."""
    for other in (1, 2, 3):
        row = await talk.partition("t")
        if row.leader == broker:
            return
        if other != broker and row.leader == other:
            spec = await cluster.stop_replica("t", 0, other)
            await talk.until("t", lambda found, other=other: found.leader not in (-1, other))  # type: ignore[misc]
            await cluster.ensure(spec)
            await talk.whole("t")
    assert (await talk.partition("t")).leader == broker


async def read_all(cluster: LocalCluster, **options: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    partition = TopicPartition("t", 0)
    async with AsyncConsumer(**{**cluster.clients(), **options}) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        async with asyncio.timeout(READ_S):
            while len(found) < RECORDS:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += [record.value for record in records]
    return found


async def take(consumer: AsyncConsumer, found: list[tuple[int, bytes | None]], count: int) -> None:
    while len(found) < count:
        for records in (await consumer.getmany(timeout_ms=100)).values():
            found += [(record.offset, record.value) for record in records]


def damaged_logs(cluster: LocalCluster) -> list[list[Any]]:
    found = cluster.running()._running().machine._description()["damaged_logs"]
    assert isinstance(found, list)
    return found


async def mended(cluster: LocalCluster, talk: Talk, broker: int) -> None:
    """Wait until the replica of this broker has a whole log, is in sync, and the controller knows that it was bad."""
    await talk.whole("t")
    await eventually(
        lambda: [row[:2] + row[3:] for row in damaged_logs(cluster)] == [["t-0", broker, True]],
        what="the status shows what happened",
    )
    spec = cluster.replica("t", 0, broker).spec
    assert len(list((spec.data_directory / ".damaged").iterdir())) == 1
    log = cluster.replica("t", 0, broker)._running().log
    offset = 0
    while offset < RECORDS:
        data = log.read(offset, 1 << 20, RECORDS)
        assert data
        offset = RECORDS if len(data) > 1 << 19 else offset + 4
    assert cluster.replica("t", 0, broker).status()["damage"] == ""


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_bit_in_a_closed_segment_of_the_leader(tmp_path: Path, seed: int, near: bool) -> None:
    @in_cluster()
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        dice = random.Random(seed)
        await filled(talk)
        leader = (await talk.partition("t")).leader
        closed = sorted(folder_of(cluster.replica("t", 0, leader).spec).glob("*.log"))[:-1]
        flip(dice.choice(closed), dice)
        assert await read_all(cluster, short_circuit_reads=near) == VALUES
        await mended(cluster, talk, leader)
        assert (await talk.partition("t")).leader != leader
        assert len(cluster.given_up) == 1

    story(tmp_path)


@pytest.mark.parametrize("suffix", ["index", "timeindex", "snapshot"])
def test_a_bit_in_a_file_that_is_made_again_is_shown_as_well(tmp_path: Path, suffix: str) -> None:
    """No record is in danger; but the disk gave back other bytes than it got, which operators are to know."""

    @in_cluster(config={"log.scrub.bytes.per.second": "1000000000", "log.scrub.interval.ms": "1"})
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        dice = random.Random(suffix)
        await filled(talk)
        leader = (await talk.partition("t")).leader
        folder = folder_of(cluster.replica("t", 0, leader).spec)
        hurt = min(path for path in folder.glob(f"*.{suffix}") if path.stat().st_size)
        flip(hurt, dice)
        await eventually(
            lambda: [row[:2] + row[3:] for row in damaged_logs(cluster)] == [["t-0", leader, True]],
            what="the status shows what was mended",
        )
        assert "made again" in str(damaged_logs(cluster)[0][2])
        assert cluster.replica("t", 0, leader).status()["damage"] == ""
        assert await read_all(cluster) == VALUES
        assert cluster.given_up == []

    story(tmp_path)


FILES = (
    "*.log closed",
    "*.log active",
    "*.index",
    "*.timeindex",
    "*.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "clean-shutdown",
    "*watermark*",
    "recovery-point-checkpoint",
    "last-boot",
)


def files_of(folder: Path, kind: str) -> list[Path]:
    pattern, _, part = kind.partition(" ")
    found = sorted(folder.glob(pattern))
    return {"closed": found[:-1], "active": found[-1:]}.get(part, found)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("seed", range(2))
def test_a_bit_in_any_file_of_a_leader_to_be(tmp_path: Path, kind: str, seed: int) -> None:
    @in_cluster()
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        dice = random.Random(f"{kind} {seed}")
        await filled(talk)
        leader = (await talk.partition("t")).leader
        spec = await cluster.stop_replica("t", 0, leader)
        found = files_of(folder_of(spec), kind)
        assert found, f"a stopped replica has {kind}"
        flip(dice.choice(found), dice)
        await cluster.ensure(spec)
        await talk.whole("t")
        for other in {1, 2, 3} - {leader}:  # until it leads
            if (await talk.partition("t")).leader == other:
                stopped = await cluster.stop_replica("t", 0, other)
                await talk.until("t", lambda row, other=other: row.leader not in (-1, other))  # type: ignore[misc]
                await cluster.ensure(stopped)
                await talk.whole("t")
        assert await read_all(cluster) == VALUES
        await talk.whole("t")
        assert await read_all(cluster) == VALUES

    story(tmp_path)


@in_cluster()
async def test_without_another_replica_in_sync_the_reader_goes_on_behind(cluster: LocalCluster, talk: Talk) -> None:
    await filled(talk, **{"min.insync.replicas": 1})
    leader = (await talk.partition("t")).leader
    others = [await cluster.stop_replica("t", 0, broker) for broker in (1, 2, 3) if broker != leader]
    await talk.until("t", lambda row: row.isr == [leader])
    folder = folder_of(cluster.replica("t", 0, leader).spec)
    log = cast(PartitionLog, cluster.replica("t", 0, leader)._running().log)
    position, header = log.segments[1].locate(log.segments[1].base_offset + 9)
    data = bytearray((path := log.segments[1].path).read_bytes())
    data[position + header.size - 2] ^= 4
    path.write_bytes(data)
    assert path.parent == folder
    partition, found = TopicPartition("t", 0), list[tuple[int, bytes | None]]()
    async with AsyncConsumer(**cluster.clients()) as consumer, asyncio.timeout(READ_S):
        consumer.assign([partition])
        consumer.seek(partition, 0)
        with pytest.raises(CorruptMessage) as error:
            await take(consumer, found, RECORDS)
        assert [offset for offset, _ in found] == list(range(header.base_offset)), "what lies before it was given"
        assert error.value.details["next_offset"] == header.next_offset
        assert str(header.next_offset) in str(error.value)
        assert "t-0" in str(error.value)
        consumer.seek(partition, header.next_offset)
        await take(consumer, found, RECORDS - header.record_count)
    assert [value for _, value in found] == VALUES[: header.base_offset] + VALUES[header.next_offset :]
    await eventually(
        lambda: [row[:2] + row[3:] for row in damaged_logs(cluster)] == [["t-0", leader, False]],
        what="the status shows the damage",
    )
    reasons = await ready_reasons(cluster, leader)
    assert any("t-0" in reason and "damaged" in reason for reason in reasons), reasons
    assert not cluster.given_up, "the only whole copy of the rest stays"
    for spec in others:
        await cluster.ensure(spec)


async def ready_reasons(cluster: LocalCluster, broker: int) -> list[str]:
    return (await cluster.broker_servers[broker].metrics.report()).reasons
