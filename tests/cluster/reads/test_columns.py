"""Whole columns through real replicas: `consume_batch` returns what `send_batch` wrote, in order."""

import asyncio

import pyarrow as pa

from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster


@in_cluster()
async def test_columns_survive_the_loss_of_a_leader_in_their_order(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config={"retention.ms": "-1"})  # its records are of 1970
    values = [b"%06d" % number * 20 for number in range(20_000)]
    async with AsyncProducer(**cluster.clients(), max_request_size=100_000) as producer:
        await (await producer.send_batch("t", values[:5_000], timestamp_ms=1))
        sent = await producer.send_batch("t", pa.array(values[5_000:]), timestamp_ms=2)
        await cluster.stop_replica("t", 0, (await talk.partition("t")).leader)
        async with asyncio.timeout(30):
            pieces = await sent
    assert sum(piece.count for piece in pieces) == 15_000
    tables = []
    async with AsyncConsumer("t", auto_offset_reset="earliest", **cluster.clients()) as consumer:
        rows = 0
        while rows < len(values):
            batch = await consumer.getcolumns(timeout_ms=20_000, max_records=7_000)
            assert 0 < len(batch) <= 7_000
            tables.append(batch.to_arrow())
            rows += len(batch)
    table = pa.concat_tables(tables)
    assert table["offset"].to_pylist() == list(range(20_000))
    assert table["value"].to_pylist() == values
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1] * 5_000 + [2] * 15_000
