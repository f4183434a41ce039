"""Records the files and frames of this release, for the tests of every later one: ``python -m tools.golden``.

Runs a small cluster of one broker, which is a metadata voter, and keeps in ``tests/golden/<version>``:

- ``data.tar.xz``: its data directory. Topics in several codecs and segments, a log whose beginning was deleted, a
  producer's state, groups with members and offsets, the quorum's log and a snapshot;
- ``frames.msgpack``: the first request and the first answer of every method that was called, as they went out, and a
  sample of a request of each other method;
- ``expected.json``: what clients read from it then.

Run it once for a release, when its formats are final; ``tests/cluster/replication/test_golden.py`` reads every version
there is.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

import raylog
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import AsyncProducer
from raylog.protocol.documents.registry import methods
from raylog.rpc import connection
from raylog.rpc.framing import NOTIFICATION, REQUEST, encode_header
from raylog.rpc.request import Request
from tests.cluster.local_cluster import LocalCluster
from tests.unit.protocol.samples import of_this_release

ROOT = Path(__file__).parent.parent / "tests" / "golden"
CONFIG = {
    "group.initial.rebalance.delay.ms": "20",
    "offsets.topic.replication.factor": "1",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}
TOPICS: dict[str, Any] = {"plain": "none", "squeezed": "lz4", "dense": "zstd"}
GROUPS = {"readers": "consumer", "classic": "classic"}
"""The protocol of each group with members."""
COUNT, TOGETHER = 240, 10
START_MS = 1_700_000_000_000


class Recorder:
    """The first request and the first answer of each method, as the bytes behind the frame's length."""

    def __init__(self) -> None:
        self.requests: dict[str, bytes] = {}
        self.answers: dict[str, bytes] = {}

    def header(self, kind: int, number: int, third: Any, args: Any, payload_bytes: int) -> bytes:
        """Stand in for ``encode_header``."""
        frame = encode_header(kind, number, third, args, payload_bytes)
        if kind in (REQUEST, NOTIFICATION):
            self.requests.setdefault(third, frame)
        return frame

    def reply(self, request: Request, args: Any = None, payload: Any = b"") -> None:
        """Stand in for ``Request.reply``."""
        if request.method not in self.answers and request.is_open:
            self.answers[request.method] = msgspec.msgpack.encode(args)
        _REPLY(request, args, payload)


_REPLY = Request.reply


async def fill(cluster: LocalCluster) -> None:
    """Write everything that the golden directory has."""
    where = cluster.clients()
    async with AsyncAdmin(**where) as admin:
        for topic, codec in TOPICS.items():
            config = {"segment.bytes": 4096, "retention.ms": -1}
            await admin.create_topic(topic, partitions=2, replication_factor=1, config=config)
            async with AsyncProducer(compression_type=codec, batch_size=512, **where) as producer:
                for start in range(0, COUNT, TOGETHER):  # one request for all would be one segment
                    sent = [await _send(producer, topic, number) for number in range(start, start + TOGETHER)]
                    await asyncio.gather(*sent)
        await admin.alter_topic_config("plain", {"max.message.bytes": 100_000})
        await admin.create_partitions("plain", 3)
        await admin.delete_records({("plain", 0): 3, ("plain", 1): 80})
        for group, protocol in GROUPS.items():
            options = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "earliest", **where}
            async with AsyncConsumer("plain", **options) as consumer:
                async with asyncio.timeout(30):
                    while not await consumer.getmany(timeout_ms=500):
                        pass
                await consumer.commit()
        async with AsyncConsumer(group_id="by-hand", **where) as lone:
            lone.assign([TopicPartition("squeezed", 1)])
            await lone.commit({TopicPartition("squeezed", 1): raylog.OffsetAndMetadata(7, "a note")})
        await admin.create_topic("gone", partitions=1, replication_factor=1)
        await admin.delete_topic("gone")
        await admin.elect_leaders()
        await admin.list_groups()
        await admin.list_partition_reassignments()
        await admin.describe_cluster()


async def _send(producer: AsyncProducer, topic: str, number: int) -> AsyncSendFuture:
    return await producer.send(
        topic,
        value=None if number % 10 == 9 else b"value %d " % number * 10,
        key=b"key %d" % (number % 7) if number % 3 else None,
        headers=[("source", b"golden")] if number % 4 == 0 else None,
        partition=number % 2,
        timestamp_ms=START_MS + number,
    )


async def read(cluster: LocalCluster) -> dict[str, Any]:
    """Return what clients find in the cluster, as plain values."""
    where = cluster.clients()
    found: dict[str, Any] = {"records": {}, "configs": {}, "groups": {}}
    async with AsyncAdmin(**where) as admin:
        for name, described in sorted((await admin.describe_topics()).items()):
            found["configs"][name] = dict(sorted(described.config.items()))
        for group in (*GROUPS, "by-hand"):
            answer = await admin.describe_group(group)
            offsets = {f"{each.topic}-{each.partition}": offset for each, offset in sorted(answer.offsets.items())}
            found["groups"][group] = {"generation": answer.generation, "protocol": answer.protocol, "offsets": offsets}
        for topic in TOPICS:
            for partition in range(2):
                rows = [_row(record) async for record in records(where, TopicPartition(topic, partition))]
                found["records"][f"{topic}-{partition}"] = rows
    return found


async def records(where: dict[str, Any], partition: TopicPartition) -> AsyncIterator[raylog.Record]:
    """Yield every record of a partition."""
    async with AsyncConsumer(auto_offset_reset="earliest", **where) as consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        position = (await consumer.beginning_offsets([partition]))[partition]
        async with asyncio.timeout(30):
            while position < end:
                for found in (await consumer.getmany(timeout_ms=500)).values():
                    for record in found:
                        position = record.offset + 1
                        yield record


def _row(record: raylog.Record) -> list[Any]:
    headers = [[name, _text(value)] for name, value in record.headers or ()]
    return [record.offset, record.timestamp_ms, _text(record.key), _text(record.value), headers]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


async def make(root: Path, recorder: Recorder) -> dict[str, Any]:
    """Live through the cluster in ``root``; return what clients read at its end."""
    cluster = LocalCluster(root, 1, CONFIG)
    with (
        mock.patch.object(connection, "encode_header", recorder.header),
        mock.patch.object(Request, "reply", lambda request, *rest: recorder.reply(request, *rest)),
    ):
        async with cluster:
            await fill(cluster)
        # A second start: the log is recovered, the group's coordinator loads its groups, a snapshot may exist.
        async with cluster:
            await cluster.all_home()
            return await read(cluster)


def main() -> None:
    """Write the golden files of this release."""
    folder = ROOT / raylog.__version__
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        expected = asyncio.run(make(root, recorder))
        for _, method in methods():  # those that one healthy broker never sends
            args = of_this_release(method.request)
            recorder.requests.setdefault(method.name, encode_header(REQUEST, 1, method.name, args, 0))
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        with tarfile.open(folder / "data.tar.xz", "w:xz") as archive:
            for path in sorted(root.rglob("*")):
                if path.is_file() and not path.name.endswith(".lock"):
                    archive.add(path, arcname=str(path.relative_to(root)))
    frames = {"requests": dict(sorted(recorder.requests.items())), "answers": dict(sorted(recorder.answers.items()))}
    (folder / "frames.msgpack").write_bytes(msgspec.msgpack.encode(frames))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for path in sorted(folder.iterdir()):
        print(f"{path.relative_to(ROOT.parent.parent)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
