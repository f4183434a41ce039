"""A reader of a range, such as a Spark task, reads the leader's files on its machine; a fetch has the same result."""

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raylog.client.producer.asynchronous import AsyncProducer
from raylog.client.reading.decode import BatchOpener
from raylog.client.reading.local_files import Place, SegmentFile
from raylog.client.reading.range_fetcher import PartitionRange, RangeFetcher
from raylog.rpc import machine_number
from raylog.storage.batch.header import HEADER_BYTES, parse_header
from raylog.storage.batch.times import TimeBounds
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.reads.test_near_reads import VALUES, count_opened, filled, flip_where_a_batch_begins
from tests.cluster.talk import Talk, in_cluster

pytestmark = pytest.mark.skipif(machine_number() is None, reason="this kernel has no boot id to know a machine by")


async def range_of(talk: Talk, start: int, end: int) -> PartitionRange:
    info = await talk.partition("t")
    return PartitionRange(
        topic="t",
        topic_id=talk.topic_ids["t"],
        partition=0,
        leader_epoch=info.leader_epoch,
        leader=(info.host, info.port),
        start=start,
        end=end,
        brokers=(),
        secret=SECRET,
    )


async def read(cluster: LocalCluster, talk: Talk, start: int, end: int, **more: Any) -> list[tuple[int, bytes | None]]:
    """The records of a range; records outside of it in the first and the last batch are dropped here."""
    return await records_of(await range_of(talk, start, end), **more)


async def records_of(wanted: PartitionRange, **more: Any) -> list[tuple[int, bytes | None]]:
    start, end = wanted.start, wanted.end
    fetcher = RangeFetcher(wanted, **more)
    opener = BatchOpener(wanted.topic_partition)
    found: list[tuple[int, bytes | None]] = []
    try:
        async with asyncio.timeout(30):
            while (batches := await fetcher.next()) is not None:
                for batch in batches:
                    if batch.is_skipped:
                        continue
                    columns = opener.columns(batch, start)
                    assert columns.values is not None
                    found += zip(columns.offsets, columns.values, strict=True)
    finally:
        await fetcher.close()
    return [entry for entry in found if entry[0] < end]


@in_cluster()
async def test_a_range_is_read_from_files_as_it_is_fetched(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk, "t")
    with pytest.MonkeyPatch.context() as patch:
        opened = count_opened(patch)
        for start, end in ((0, len(VALUES)), (5, 4_000), (3_999, 4_001)):
            expected = list(enumerate(VALUES))[start:end]
            for max_bytes in (1, 1 << 20):
                opened.clear()
                assert await read(cluster, talk, start, end, max_bytes=max_bytes) == expected
                assert opened, "the leader's file was read here"
            opened.clear()
            assert await read(cluster, talk, start, end, short_circuit_reads=False) == expected
            assert not opened


@in_cluster()
async def test_files_may_be_left_to_the_thread_that_wants_the_records(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk, "t")
    whole = await range_of(talk, 0, len(VALUES))
    fetcher = RangeFetcher(whole)
    found: list[int] = []
    answers = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raylog.actors.replica.consumer_reads.NEAR_BYTES_MAX", 400_000)  # of about a million
        async with asyncio.timeout(30):
            while (batches := await fetcher.next(leaves_files=True)) is not None:
                assert batches == [], "all of them are in files"
                answers += 1
                assert fetcher.next_offset == len(found), "nothing is read before it is wanted"
                while batches := fetcher.near():
                    for batch in batches:
                        found += range(batch.header.base_offset, batch.header.next_offset)
        await fetcher.close()
    assert found == list(range(len(VALUES)))
    assert answers > 1, "files are read again behind the end of an answer"


@in_cluster()
async def test_files_that_hold_nothing_wanted_are_not_read_again(cluster: LocalCluster, talk: Talk) -> None:
    """A leader that named the wrong part of its file would name it without an end."""
    await filled(cluster, talk, "t")
    real, calls = Place.read, 0

    def of_the_beginning(self: Place, most_bytes: int, offset: int, times: TimeBounds | None = None) -> Any:
        nonlocal calls
        calls += 1
        return real(self._replace(position=0, length=100_000), most_bytes, 0, times)[0], None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "read", of_the_beginning)
        expected = list(enumerate(VALUES))[7_000:]
        assert [entry for entry in await read(cluster, talk, 7_000, 8_000) if entry[0] >= 7_000] == expected
        assert calls == 1


@in_cluster()
async def test_batches_outside_of_a_time_are_skipped(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk, "t")
    every = list(enumerate(VALUES))
    future, whole = TimeBounds(low_ms=2**50), TimeBounds(0, 2**50)
    for near in (True, False):
        assert await read(cluster, talk, 0, len(VALUES), times=future, short_circuit_reads=near) == []
        assert await read(cluster, talk, 0, len(VALUES), times=whole, short_circuit_reads=near) == every


@in_cluster()
async def test_a_narrow_time_is_read_from_another_machine_without_the_rest(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config={"retention.ms": "-1"})
    moments = range(1_000_000, 1_400_000, 1_000)  # a batch of each
    async with AsyncProducer(**cluster.clients()) as producer:
        for moment in moments:
            await (await producer.send_batch("t", [b"v" * 100] * 50, timestamp_ms=moment))
    wanted = await range_of(talk, 0, 50 * len(moments))
    fetcher = RangeFetcher(wanted, times=TimeBounds(1_200_000, 1_203_000), short_circuit_reads=False)
    found: list[int] = []
    try:
        async with asyncio.timeout(30):
            while (batches := await fetcher.next()) is not None:
                found += [each.header.base_timestamp for each in batches]
    finally:
        await fetcher.close()
    assert {1_200_000, 1_201_000, 1_202_000} <= set(found)
    assert fetcher.bytes_read < 0.05 * 50 * 100 * len(moments)


@in_cluster()
async def test_a_range_in_a_file_that_cannot_be_read_here_is_fetched(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk, "t")
    with pytest.MonkeyPatch.context() as patch:
        opened = count_opened(patch)
        patch.setattr(SegmentFile, "read", lambda self, size, position: bytes(size))
        assert await read(cluster, talk, 0, len(VALUES)) == list(enumerate(VALUES))
        assert len(opened) == 1, "and it is not tried again"


@in_cluster()
async def test_a_batch_of_a_file_that_does_not_follow_is_fetched(cluster: LocalCluster, talk: Talk) -> None:
    """No checksum covers where a batch begins: one bit of it passed for the end of the range."""
    await filled(cluster, talk, "t")
    for bit in (0, 5, 11, 12, 14, 40, 62, 63):
        with pytest.MonkeyPatch.context() as patch:
            flipped = flip_where_a_batch_begins(patch, bit)
            assert await read(cluster, talk, 0, len(VALUES)) == list(enumerate(VALUES)), bit
            assert flipped


@in_cluster()
async def test_a_range_in_a_file_that_is_not_seen_from_here_is_fetched(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk, "t")
    with pytest.MonkeyPatch.context() as patch:
        nowhere = lambda path: str(Path("/nowhere") / str(path))  # noqa: E731
        patch.setattr("raylog.actors.replica.consumer_reads.os.path.abspath", nowhere)
        assert await read(cluster, talk, 0, len(VALUES)) == list(enumerate(VALUES))


@in_cluster()
async def test_damage_behind_good_batches_is_fetched_from_the_leader(cluster: LocalCluster, talk: Talk) -> None:
    """Records read before the damage are returned, and the rest comes from the leader."""
    await filled(cluster, talk, "t")
    real, calls = SegmentFile.read, 0

    def failing(self: SegmentFile, size: int, position: int) -> bytes:
        nonlocal calls
        calls += 1
        data = real(self, size, position)
        return data if calls <= 2 else data[:-1] + bytes([data[-1] ^ 1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentFile, "read", failing)
        assert await read(cluster, talk, 0, len(VALUES)) == list(enumerate(VALUES))
    assert calls > 2


@in_cluster()
async def test_a_bit_that_flips_in_the_leaders_file_costs_no_record(cluster: LocalCluster, talk: Talk) -> None:
    """The leader finds what its reader here has met, gives its log up, and the range goes on at another replica."""
    await filled(cluster, talk, "t")
    await talk.whole("t")
    brokers = tuple(server.endpoint for server in cluster.broker_servers.values())
    dice = random.Random(3)
    for number in range(8):
        leader = (await talk.partition("t")).leader
        spec = cluster.replica("t", 0, leader).spec
        path = next((spec.data_directory / "t-0").glob("*.log"))
        first = parse_header(path.read_bytes()[:HEADER_BYTES]).size
        at = first + dice.randrange(8) if number % 2 else dice.randrange(path.stat().st_size)
        with path.open("r+b") as file:
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << dice.randrange(8)]), at)
        wanted = replace(await range_of(talk, 0, len(VALUES)), brokers=brokers)
        assert await records_of(wanted) == list(enumerate(VALUES)), (number, at)
        await talk.whole("t")
