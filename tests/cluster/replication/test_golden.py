"""This release reads the files of earlier releases: their data directories, and frames of every method.

``python -m tools.golden`` made the files, once for each release; see ADR 0030.
"""

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raylog.actors.metadata.snapshot import SNAPSHOT, read_snapshot
from raylog.base.errors import InvalidRequest
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.cluster.metadata import MetadataCache
from raylog.client.producer.producer import AsyncProducer
from raylog.core.metadata.records import record_from_wire
from raylog.core.partition import PartitionState
from raylog.protocol.broker import METADATA
from raylog.protocol.documents.registry import methods
from raylog.protocol.message import read
from raylog.rpc.framing import NOTIFICATION, REQUEST, decode_args, decode_header
from tests.cluster.local_cluster import LocalCluster
from tools.golden import CONFIG, ROOT, TOPICS
from tools.golden import read as read_all

RELEASES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())


def frames(release: str) -> dict[str, dict[str, bytes]]:
    return msgspec.msgpack.decode(
        (ROOT / release / "frames.msgpack").read_bytes(), type=dict[str, dict[str, bytes]], strict=True
    )


def reads(name: str, part: str, wire: Any) -> None:
    """Read a request or reply like an endpoint of this release; raises AssertionError when no endpoint can."""
    refusals = []
    for _, method in methods():
        if method.name == name:
            try:
                read(getattr(method, part), wire, name)
            except InvalidRequest as refusal:
                refusals.append(str(refusal))
            else:
                return
    raise AssertionError(f"the {part} of {name} is refused: {wire!r:.200} {refusals}")


@pytest.mark.parametrize("release", RELEASES)
def test_requests_of_a_release_are_taken(release: str) -> None:
    requests = frames(release)["requests"]
    assert {"produce", "fetch", "metadata", "join_group", "offset_commit", "register_broker"} <= set(requests)
    for name, frame in requests.items():
        kind, _, named, encoded = decode_header(frame[8:])
        args = decode_args(encoded)
        assert kind in (REQUEST, NOTIFICATION)
        assert named == name
        reads(name, "request", args)


@pytest.mark.parametrize("release", RELEASES)
def test_replies_of_a_release_are_read(release: str) -> None:
    answers = frames(release)["answers"]
    assert {"produce", "fetch", "metadata", "join_group", "offset_commit", "register_broker"} <= set(answers)
    for name, frame in answers.items():
        reads(name, "reply", msgspec.msgpack.decode(frame))


@pytest.mark.parametrize("release", RELEASES)
def test_metadata_in_answers_of_a_release_is_read(release: str) -> None:
    found = frames(release)
    answers = {method: msgspec.msgpack.decode(frame) for method, frame in found["answers"].items()}
    cache = MetadataCache()
    cache.update(METADATA.read_reply(answers["metadata"]))
    assert cache.brokers
    for row in answers["register_broker"][4]:
        record_from_wire(row)
    assert PartitionState.from_wire(answers["register_replica"][1]).replicas
    _, _, _, encoded = decode_header(found["requests"]["metadata_update"][8:])
    _, rows = decode_args(encoded)
    for row in rows:
        record_from_wire(row)


@pytest.mark.parametrize("release", RELEASES)
def test_a_released_data_directory_keeps_its_records_groups_and_offsets(release: str, tmp_path: Path) -> None:
    with tarfile.open(ROOT / release / "data.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    snapshots = list(tmp_path.rglob(SNAPSHOT))
    assert snapshots, "the voter had a snapshot"
    held = read_snapshot(snapshots[0].parent)
    assert held is not None
    assert held.image().cluster_id == "c" * 32

    async def story() -> dict[str, Any]:
        async with asyncio.timeout(60), LocalCluster(tmp_path, 1, CONFIG) as cluster:
            await cluster.all_home()
            found = await read_all(cluster)
            await use(cluster)
            assert cluster.fatal == []
            return found

    assert asyncio.run(story()) == json.loads((ROOT / release / "expected.json").read_text(encoding="utf-8"))


async def use(cluster: LocalCluster) -> None:
    """Continue from the state of that release."""
    async with AsyncProducer(**cluster.clients()) as producer, AsyncAdmin(**cluster.clients()) as admin:
        for topic in TOPICS:
            await (await producer.send(topic, value=b"more", partition=0))
        await admin.create_topic("later", partitions=1, replication_factor=1)
        await admin.delete_group("by-hand")
