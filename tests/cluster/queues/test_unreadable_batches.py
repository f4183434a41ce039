"""One batch that cannot be opened: the records before and behind it are handed out, and it is a dead letter at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raylog.actors.queues import reading
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.producer.producer import AsyncProducer
from raylog.client.reading import decode
from raylog.storage.batch.header import BatchHeader
from raylog.storage.batch.records import decode_batch
from raylog.storage.errors import CorruptBatch
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import consumer, read_all, run
from tests.cluster.talk import Talk

pytestmark = pytest.mark.timeout(120)

BAD = 5


def no_body(buffer: Any, place: int, header: BatchHeader, **keywords: Any) -> Any:
    """As `decode_batch`, of a log in which one batch with a right checksum has a body that does not open."""
    columns = decode_batch(buffer, place, header, **keywords)
    if columns.values is not None and b"bad" in columns.values and not columns.headers:
        raise CorruptBatch("its columns have different lengths")
    return columns


@pytest.mark.parametrize("order", ["none", "key"])
def test_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.create_topic("jobs", partitions=1, replication_factor=3)
        async with AsyncProducer(**cluster.clients()) as producer:
            for number in range(11):
                value = b"bad" if number == BAD else b"%d" % number
                await (await producer.send("jobs", value, key=b"k"))
        monkeypatch.setattr(decode, "decode_batch", no_body)
        monkeypatch.setattr(reading, "decode_batch", no_body)
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
        assert b"is damaged" in (headers["__dlq.errors.message"] or b"")

    run(tmp_path, story)
