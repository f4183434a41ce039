"""Consumers on the leader's machine read its files, with the same result as consumers elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.reading.local_files import SegmentFile
from raylog.rpc import machine_number
from raylog.storage.batch.header import HEADER_BYTES, parse_header
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster

pytestmark = pytest.mark.skipif(machine_number() is None, reason="this kernel has no boot id to know a machine by")
VALUES = [b"%06d" % number * 20 for number in range(8_000)]


async def filled(cluster: LocalCluster, talk: Talk, topic: str) -> None:
    await talk.create(topic, config={"retention.ms": "-1"})  # its records are of 1970
    async with AsyncProducer(**cluster.clients()) as producer:
        async with asyncio.timeout(30):
            await (await producer.send_batch(topic, VALUES, timestamp_ms=7))


async def read(cluster: LocalCluster, topic: str, **more: Any) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async with AsyncConsumer(topic, **cluster.clients(), auto_offset_reset="earliest", **more) as consumer:
        while len(found) < len(VALUES):
            polled = await consumer.getmany(timeout_ms=20_000, max_records=3_000)
            assert polled, f"nothing came behind {len(found)} records"
            found += [(record.offset, record.value) for records in polled.values() for record in records]
    return found


def count_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    real = SegmentFile.__init__

    def counting(self: SegmentFile, path: str, identity: tuple[int, int], owner: int | None = None) -> None:
        real(self, path, identity, owner)
        opened.append(path)

    monkeypatch.setattr(SegmentFile, "__init__", counting)
    return opened


def flip_where_a_batch_begins(monkeypatch: pytest.MonkeyPatch, bit: int) -> list[int]:
    """Readers here find another base offset in the second batch of each file; the leader finds the right one."""
    flipped: list[int] = []
    real = SegmentFile.read

    def flipping(self: SegmentFile, size: int, position: int) -> bytes:
        first = parse_header(real(self, HEADER_BYTES, 0)).size
        data = bytearray(real(self, size, position))
        at = first + 7 - bit // 8 - position
        if 0 <= at < size:
            data[at] ^= 1 << bit % 8
            flipped.append(position)
        return bytes(data)

    monkeypatch.setattr(SegmentFile, "read", flipping)
    return flipped


@in_cluster()
async def test_files_and_fetches_give_the_same_records(cluster: LocalCluster, talk: Talk) -> None:
    with pytest.MonkeyPatch.context() as patch:
        opened = count_opened(patch)
        await filled(cluster, talk, "t")
        near = await read(cluster, "t")
        assert opened, "the leader's file was read here"
        opened.clear()
        sent = await read(cluster, "t", short_circuit_reads=False)
        assert not opened
    assert near == sent == list(enumerate(VALUES))


@in_cluster()
async def test_a_file_that_cannot_be_read_here_is_fetched(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk, "t")
    with pytest.MonkeyPatch.context() as patch:
        opened = count_opened(patch)
        patch.setattr(SegmentFile, "read", lambda self, size, position: bytes(size))
        assert await read(cluster, "t") == list(enumerate(VALUES))
        assert len(opened) == 1, "and it is not tried again"


@in_cluster()
async def test_a_file_that_is_not_seen_from_here_is_fetched(cluster: LocalCluster, talk: Talk) -> None:
    await filled(cluster, talk, "t")
    with pytest.MonkeyPatch.context() as patch:
        nowhere = lambda path: str(Path("/nowhere") / str(path))  # noqa: E731
        patch.setattr("raylog.actors.replica.consumer_reads.os.path.abspath", nowhere)
        assert await read(cluster, "t") == list(enumerate(VALUES))


@in_cluster()
async def test_a_batch_of_a_file_that_does_not_follow_is_fetched(cluster: LocalCluster, talk: Talk) -> None:
    """No checksum covers where a batch begins."""
    await filled(cluster, talk, "t")
    for bit in (0, 5, 11, 12, 14, 40, 62, 63):
        with pytest.MonkeyPatch.context() as patch:
            flipped = flip_where_a_batch_begins(patch, bit)
            assert await read(cluster, "t", group_id=f"g{bit}") == list(enumerate(VALUES)), bit
            assert flipped
