"""Queues on topics with transactions: what was committed is handed out once, and what was aborted to no member."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from raylog.client.admin.admin import AsyncAdmin
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, run
from tests.cluster.talk import Talk

pytestmark = pytest.mark.timeout(120)

ROUNDS, RECORDS, ABORTED = 3, 400, 50


async def fill(cluster: LocalCluster) -> Counter[bytes]:
    """An aborted transaction, then committed ones of the same producer; returns what was committed."""
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("jobs", partitions=1, replication_factor=3)
    committed: Counter[bytes] = Counter()
    async with AsyncProducer(transactional_id="t", **cluster.clients()) as producer:
        await producer.init_transactions()
        for number in range(ROUNDS):
            await producer.begin_transaction()
            for row in range(ABORTED):
                _ = await producer.send("jobs", b"aborted %d %d" % (number, row), key=b"%d" % (row % 7))
            await producer.flush()
            await producer.abort_transaction()
            await producer.begin_transaction()
            for row in range(RECORDS):
                value = b"%d %d" % (number, row)
                committed[value] += 1
                _ = await producer.send("jobs", value, key=b"%d" % (row % 7))
            await producer.commit_transaction()
    return committed


@pytest.mark.parametrize("order", ["none", "key"])
@pytest.mark.parametrize("ahead", [7, 500])
def test_committed_records_of_one_that_aborted_before_are_handed_out(tmp_path: Path, order: str, ahead: int) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        committed = await fill(cluster)
        found: Counter[bytes] = Counter()
        async with consumer(cluster, order=order, max_poll_records=ahead) as worker:
            deadline = time.monotonic() + 30
            while found.total() < committed.total() and time.monotonic() < deadline:
                for message in await worker.getmany(timeout_ms=500):
                    found[message.value] += 1
                    message.ack()
            await worker.commit()
            assert await worker.getmany(timeout_ms=300) == []
        assert found == committed
        async with AsyncAdmin(**cluster.clients()) as admin:
            (queue,) = await admin.describe_queue("workers", "jobs")
        assert queue.counters["handed_out"] == committed.total(), "no member answers for what was aborted"

    run(tmp_path, story)
