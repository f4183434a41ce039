"""One bit flips anywhere in the folder of one replica of three: all is read within seconds, and mended without a hand.

File and bit are drawn by seed, for leaders and followers, while the replica runs and before it starts. Damage of
batches is in the status, also when it is mended; but for that at the end of a log whose process was killed. Where that
is not known to be committed it is taken for a torn write, cut and copied again. Other files are made again from the
batches, or the whole log is.
"""

import asyncio
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from raylog import AsyncConsumer, AsyncProducer, TopicPartition
from raylog.actors.actor_specs import ReplicaSpec
from raylog.storage.batch.header import iter_headers
from raylog.storage.log.partition_log import LogConfig, PartitionLog
from raylog.storage.scrub.log_scrub import LogScrub
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

CONFIG = {"segment.bytes": 4_096, "index.interval.bytes": 512}
SCRUBS_AT_ONCE = {"log.scrub.bytes.per.second": "1000000000", "log.scrub.interval.ms": "1"}
READ_S = 5.0
INDEXES = (".index", ".timeindex", ".txnindex", ".snapshot")
SEEDS = 3


def folder_of(spec: ReplicaSpec) -> Path:
    return spec.data_directory / f"{spec.topic}-{spec.partition}"


@dataclass(frozen=True)
class Flip:
    """A bit of a file."""

    file: str
    bit: int

    @staticmethod
    def drawn(folder: Path, seed: int, dice: random.Random) -> "Flip":
        files = [path for path in sorted(folder.iterdir()) if path.stat().st_size]
        kinds = (
            [path for path in files if path.suffix == ".log"],
            [path for path in files if path.suffix in INDEXES],
            [path for path in files if path.suffix not in (".log", *INDEXES)],
        )
        path = dice.choice(kinds[seed % 3])
        return Flip(path.name, dice.randrange(8 * path.stat().st_size))

    def do(self, folder: Path) -> None:
        with (folder / self.file).open("r+b") as file:
            file.seek(self.bit // 8)
            value = file.read(1)[0] ^ 1 << self.bit % 8
            file.seek(self.bit // 8)
            file.write(bytes([value]))


async def filled(cluster: LocalCluster, talk: Talk) -> list[bytes | None]:
    """Records of three kinds of producers; returns those that are committed and were not deleted."""
    await talk.create("t", config=CONFIG)
    expected: list[bytes | None] = []
    async with (
        AsyncProducer(**cluster.clients(), linger_ms=0) as plain,
        AsyncProducer(**cluster.clients(), linger_ms=0, transactional_id="x") as writer,
    ):
        await writer.init_transactions()
        for turn in range(40):
            values = [b"record %03d %d %s" % (turn, number, b"x" * 40) for number in range(4)]
            await writer.begin_transaction()
            for value in values[:2]:
                await writer.send_and_wait("t", value, partition=0)
            if turn % 4:
                await writer.commit_transaction()
                expected += values[:2]
            else:
                await writer.abort_transaction()
            for value in values[2:]:
                await plain.send_and_wait("t", value, partition=0)
            expected += values[2:]
        await plain.flush()
    return expected


async def read_all(cluster: LocalCluster, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    partition = TopicPartition("t", 0)
    async with AsyncConsumer(**cluster.clients(), isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        async with asyncio.timeout(READ_S):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += [record.value for record in records]
    return found


def shown(cluster: LocalCluster) -> list[list[Any]]:
    found = cluster.running()._running().machine._description()["damaged_logs"]
    assert isinstance(found, list)
    return found


async def whole_folders(cluster: LocalCluster, talk: Talk, scratch: Path) -> None:
    """Stop the replicas, and compare what their folders hold when they are opened again."""
    await talk.whole("t")
    specs = [await cluster.stop_replica("t", 0, broker) for broker in (1, 2, 3)]
    found = []
    for spec in specs:
        copy = scratch / f"copy-{spec.broker}"
        shutil.copytree(folder_of(spec), copy)
        config = LogConfig(segment_bytes=4_096, index_interval_bytes=512)
        log = PartitionLog.open(copy, config, topic_id=spec.topic_id, topic="t", partition=0, now_ms=0)
        offset, data = log.log_start_offset, b""
        while offset < log.log_end_offset:
            part = log.read(offset, 1 << 20, log.log_end_offset)
            data, offset = data + part, [header for _, header in iter_headers(part)][-1].next_offset
        found.append((log.log_start_offset, data))
        log.close()
    assert found[0] == found[1] == found[2]


CASES = [(role, when) for role in ("leader", "follower") for when in ("running", "stopped", "killed")]


@pytest.mark.parametrize(("role", "when"), CASES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_bit_anywhere(tmp_path: Path, role: str, when: str, seed: int) -> None:
    @in_cluster(config=SCRUBS_AT_ONCE)
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        dice = random.Random(f"{role} {when} {seed}")
        expected = await filled(cluster, talk)
        row = await talk.whole("t")
        broker = row.leader if role == "leader" else dice.choice([each for each in (1, 2, 3) if each != row.leader])
        if when == "running":
            spec = cluster.replica("t", 0, broker).spec
        elif when == "stopped":
            spec = await cluster.stop_replica("t", 0, broker)
        else:
            spec = await cluster.crash_replica("t", 0, broker)
        flip = Flip.drawn(folder_of(spec), seed, dice)
        last_segment = max(path.name for path in folder_of(spec).glob("*.log"))
        print(f"{flip} on broker {broker}, the {role}, {when}")
        flip.do(folder_of(spec))
        if when != "running":
            await cluster.ensure(spec)
        assert await read_all(cluster, len(expected)) == expected
        if flip.file.endswith(".log") and not (when == "killed" and flip.file == last_segment):
            await eventually(
                lambda: [each[:2] + each[3:] for each in shown(cluster)] == [["t-0", broker, True]],
                what="the status shows what happened, and that it is mended",
            )
        await talk.whole("t")
        assert all(cluster.replica("t", 0, each).status()["damage"] == "" for each in (1, 2, 3))
        assert await read_all(cluster, len(expected)) == expected
        log = cluster.replica("t", 0, broker)._running().log
        await eventually(
            lambda: not LogScrub(cast(PartitionLog, log)).damaged_files(), what="its small files are written again"
        )
        await whole_folders(cluster, talk, tmp_path)

    story(tmp_path)
