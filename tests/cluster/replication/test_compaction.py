"""Compacted topics through real replicas, sockets and files: the last record of each key stays at its offset."""

from __future__ import annotations

import asyncio
from typing import Any

import raylog
from raylog.actors.clock import wall_ms
from raylog.base.errors import InvalidRecord
from raylog.base.ids import TopicPartition
from raylog.storage.batch.records import encode_batch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 1024, "file.delete.delay.ms": 0}
OFTEN = {"log.cleaner.backoff.ms": "50"}
WHERE = TopicPartition("t", 0)


async def put(talk: Talk, key: bytes, value: bytes | None, times: int = 1) -> int:
    """Write records of one key, in a batch each; returns the offset of the last one."""
    head, endpoint = await talk.leader("t")
    offset = -1
    for _ in range(times):
        batch = encode_batch([key], [value], [wall_ms()])
        offset = (await talk.call(endpoint, "produce", [*head, -1, 5000], batch)).args[0]
    return offset


def sizes(cluster: LocalCluster) -> list[int]:
    return [size_at(cluster, broker) for broker in (1, 2, 3)]


def size_at(cluster: LocalCluster, broker: int) -> int:
    found = cluster.replica("t", 0, broker).status()["size_bytes"]
    assert isinstance(found, int)
    return found


def read(options: dict[str, Any], start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """Read a partition to its end, as any client does."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    with raylog.Consumer(**options) as consumer:
        consumer.assign([WHERE])
        consumer.seek(WHERE, start)
        end = consumer.end_offsets([WHERE])[WHERE]
        while consumer.position(WHERE) < end:
            found += [(record.offset, record.key, record.value) for record in consumer.consume(100, timeout=10)]
    return found


@in_cluster(config=OFTEN)
async def test_every_replica_keeps_the_last_record_of_each_key(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config=COMPACTED)
    first = await put(talk, b"seldom", b"1")
    await put(talk, b"often", b"x" * 100, times=60)
    await eventually(lambda: max(sizes(cluster)) < 4_000, 20)
    last = await put(talk, b"often", b"last")
    options = cluster.clients()
    found = await asyncio.to_thread(read, options)
    assert found[0] == (first, b"seldom", b"1")
    assert found[-1] == (last, b"often", b"last")
    assert len(found) < 30
    middle = await asyncio.to_thread(read, options, 20)
    assert middle == [record for record in found if record[0] >= 20]


@in_cluster(config=OFTEN)
async def test_a_replica_that_was_away_gets_what_is_left(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config=COMPACTED)
    await put(talk, b"often", b"x" * 100, times=5)
    row = await talk.whole("t")
    away = next(broker for broker in row.replicas if broker != row.leader)
    spec = await cluster.crash_replica("t", 0, away)
    await put(talk, b"often", b"x" * 100, times=60)
    await eventually(lambda: size_at(cluster, row.leader) < 4_000, 20)
    await cluster.ensure(spec)
    await talk.whole("t")
    ends = [cluster.replica("t", 0, broker).status()["log_end_offset"] for broker in row.replicas]
    assert ends == [65, 65, 65]


@in_cluster(brokers=1)
async def test_a_record_without_key_is_refused(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config=COMPACTED, replicas=1)
    head, endpoint = await talk.leader("t")
    for keys in (None, [b"a", None]):
        batch = encode_batch(keys, [b"1", b"2"], [wall_ms()] * 2)
        await refused(talk.call(endpoint, "produce", [*head, -1, 5000], batch), InvalidRecord)
    assert (await talk.fetch("t")).records == []


def send_without_a_key(options: dict[str, Any]) -> list[BaseException | None]:
    """Send a batch in which one record has no key, and then the same records with keys; returns the first errors."""
    with raylog.Producer(**options, linger_ms=200) as producer:
        keys = [b"a", None, b"c"]
        failed = [producer.send("t", b"1", key, partition=0).exception for key in keys]
        errors: list[BaseException | None] = [exception(20) for exception in failed]
        for future in [producer.send("t", b"2", key or b"b", partition=0) for key in keys]:
            future.result(20)
    return errors


@in_cluster(brokers=1)
async def test_a_refused_batch_may_be_sent_again_with_keys(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config=COMPACTED, replicas=1)
    options = cluster.clients()
    errors = await asyncio.to_thread(send_without_a_key, options)
    for error in errors:
        assert isinstance(error, InvalidRecord)
        assert "t-0 is compacted, so each record needs a key, and one has none" in str(error)
        assert "give each record a key, or set cleanup.policy=delete for the topic" in str(error)
    assert [row[1:] for row in await asyncio.to_thread(read, options)] == [(b"a", b"2"), (b"b", b"2"), (b"c", b"2")]
