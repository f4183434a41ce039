"""Records that carry the time of their append: the producer's answer and every reader show the same time."""

from __future__ import annotations

from typing import Any

from raylog.actors.clock import wall_ms
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.ranges.arrow import ArrowBuilder
from raylog.client.reading.decode import FetchedBatch
from raylog.storage.batch.compression import ZSTD
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import encode_kafka_batch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster

WHERE = TopicPartition("t", 0)
STAMPED = {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"}
LONG_AGO = 86_400_000
"""The second day of 1970: the time that the producers give."""


async def raw(talk: Talk) -> bytes:
    head, endpoint = await talk.leader("t")
    return bytes((await talk.call(endpoint, "fetch", [*head, 0, 1 << 20, 1, 0, 0])).payload)


async def from_kafka(talk: Talk) -> int:
    """Append a batch in Kafka's own form; returns the time that the answer names."""
    head, endpoint = await talk.leader("t")
    batch = encode_kafka_batch([b"k"], [b"of kafka"], [LONG_AGO])
    return int((await talk.call(endpoint, "produce", [*head, -1, 5000], batch)).args[2])


def rows_of_spark(payload: bytes) -> list[dict[str, Any]]:
    builder = ArrowBuilder(WHERE, 0, 100)
    for position, header in iter_headers(payload):
        builder.add(FetchedBatch(payload, position, header))
    return [row for made in builder.take() for row in made.to_pylist()]


@in_cluster()
async def test_every_reader_shows_the_time_of_the_append(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config=STAMPED)
    began = wall_ms()
    async with AsyncProducer(**cluster.clients()) as producer:
        first = await producer.send_and_wait("t", b"a", b"k", timestamp_ms=LONG_AGO)
        second = await producer.send_and_wait("t", b"b", b"k", timestamp_ms=LONG_AGO)
    times = [first.timestamp_ms, second.timestamp_ms, await from_kafka(talk)]
    assert times == sorted(times)
    assert began <= times[0] <= times[-1] <= wall_ms()
    await cluster.stop_replica("t", 0, (await talk.partition("t")).leader)
    await talk.until("t", lambda row: row.leader > 0 and row.leader_epoch > 1)
    payload = await raw(talk)
    assert [header.compression for _, header in iter_headers(payload)] == [ZSTD] * 3
    rows = rows_of_spark(payload)
    assert [(int(row["timestamp"].timestamp() * 1000 + 0.5), row["timestampType"]) for row in rows] == [
        (moment, 1) for moment in times
    ]
    async with AsyncConsumer("t", auto_offset_reset="earliest", **cluster.clients()) as consumer:
        found = [await consumer.getone() for _ in range(3)]
        assert [(record.value, record.timestamp_ms) for record in found] == list(
            zip((b"a", b"b", b"of kafka"), times, strict=True)
        )
        (place,) = (await consumer.offsets_for_times({WHERE: began})).values()
        assert place is not None
        assert (place.offset, place.timestamp_ms) == (0, times[0])
        assert (await consumer.offsets_for_times({WHERE: times[-1] + 1}))[WHERE] is None
    async with AsyncConsumer("t", auto_offset_reset="earliest", **cluster.clients()) as consumer:
        shown: list[int] = []
        while len(shown) < 3:
            table = (await consumer.getcolumns(timeout_ms=20_000)).to_arrow()
            shown += [int(moment.timestamp() * 1000 + 0.5) for moment in table["timestamp"].to_pylist()]
        assert shown == times
    latest = await talk.list_offsets("t", -3)
    assert latest == (times.index(times[-1]), times[-1])
