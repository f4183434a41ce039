"""One batch that cannot be opened: the records before and behind it are handed out, and it is a dead letter at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from raylog.client.admin.admin import AsyncAdmin
from raylog.client.producer.producer import AsyncProducer
from raylog.storage.batch.compression import ZSTD, compress
from raylog.storage.batch.header import MAGIC_COLUMNS
from raylog.storage.batch.records import assemble_batch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, read_all, run
from tests.cluster.talk import Talk
from tests.cluster.unopened import stored_unopened

pytestmark = pytest.mark.timeout(120)

BAD = 5


@pytest.mark.parametrize("order", ["none", "key"])
def test_the_others_go_on(tmp_path: Path, order: str) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.create_topic("jobs", partitions=1, replication_factor=3)
        stamps = [int(time.time() * 1000)]
        bad = assemble_batch(MAGIC_COLUMNS, compress(ZSTD, b"no msgpack"), stamps, compression=ZSTD)
        async with AsyncProducer(**cluster.clients()) as producer:
            for number in range(11):
                if number == BAD:
                    head, endpoint = await talk.leader("jobs")
                    with stored_unopened():
                        await talk.call(endpoint, "produce", [*head, -1, 5_000], bad)
                else:
                    await (await producer.send("jobs", b"%d" % number, key=b"k"))
        async with consumer(cluster, order=order, dead_letter_topic="dlq.jobs") as worker:
            found: list[int] = []
            while len(found) < 10:
                message = await worker.getone(timeout_ms=10_000)
                assert message is not None, found
                found.append(message.offset)
                assert message.delivery_count == 1
                message.ack()
            await worker.commit()
            assert sorted(found) == [offset for offset in range(11) if offset != BAD]
        letter = (await read_all(cluster, "dlq.jobs", 1))[0]
        headers = dict(letter.headers)
        assert letter.value is None
        assert headers["__dlq.errors.offset"] == b"%d" % BAD
        assert b"cannot be read" in (headers["__dlq.errors.message"] or b"")

    run(tmp_path, story)
