"""What earlier releases wrote is read by this one: their data directories, and frames of every method.

``python -m tools.golden`` made the files, once for each release; see ADR 0030.
"""

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from raylog.actors import broker_server, replica_server
from raylog.actors.arguments import arguments
from raylog.actors.controller_requests import event_for as controller_event
from raylog.actors.group_requests import event_for as group_event
from raylog.actors.metadata_snapshot import SNAPSHOT, read_snapshot
from raylog.client.admin import AsyncAdmin
from raylog.client.metadata import MetadataCache
from raylog.client.producer import AsyncProducer
from raylog.core.controller.records import record_from_wire
from raylog.core.errors import InvalidRequest
from raylog.core.replication.state import PartitionState
from raylog.rpc.framing import NOTIFICATION, REQUEST, decode_header
from raylog.rpc.request import Request
from tests.cluster.local_cluster import LocalCluster
from tools.golden import CONFIG, ROOT, TOPICS, clients, read

RELEASES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
FROM_CONTROLLER = {"metadata_update", "partition_state", "stop_replica", "heartbeat"}
"""Methods whose arguments are read where they arrive."""
VOTER = {"voter_promise", "voter_append", "voter_snapshot", "voter_read"}


def frames(release: str) -> dict[str, dict[str, bytes]]:
    return msgspec.msgpack.decode(
        (ROOT / release / "frames.msgpack").read_bytes(), type=dict[str, dict[str, bytes]], strict=True
    )


class Came:
    """A request as it came, without a connection."""

    def __init__(self, method: str, args: Any) -> None:
        self.method, self.args = method, args


def takes(method: str, args: Any) -> None:
    """Read the arguments as the endpoints of this release do; raises for what none of them takes."""
    request = cast(Request, Came(method, args))
    readers: list[Any] = []
    if method in replica_server._NUMBERS_BEHIND_PARTITION:
        readers.append(lambda: replica_server._numbers(args, replica_server._NUMBERS_BEHIND_PARTITION[method]))
    if method in broker_server._ARGUMENTS:
        readers.append(lambda: arguments(request, *broker_server._ARGUMENTS[method]))
    readers += [lambda: controller_event(request, 1, 2, 3), lambda: group_event(request, 1, 2)]
    refusals = []
    for reader in readers:
        try:
            reader()
        except InvalidRequest as refusal:
            refusals.append(str(refusal))
        else:
            return
    raise AssertionError(f"{method} {args!r:.200} is refused: {refusals}")


@pytest.mark.parametrize("release", RELEASES)
def test_requests_of_a_release_are_taken(release: str) -> None:
    requests = frames(release)["requests"]
    assert {"produce", "fetch", "metadata", "join_group", "offset_commit", "register_broker"} <= set(requests)
    for method, frame in requests.items():
        kind, _, named, args = decode_header(frame[8:])
        assert kind in (REQUEST, NOTIFICATION)
        assert named == method
        if method not in FROM_CONTROLLER | VOTER:
            takes(method, list(args) or None)


@pytest.mark.parametrize("release", RELEASES)
def test_metadata_in_answers_of_a_release_is_read(release: str) -> None:
    found = frames(release)
    answers = {method: msgspec.msgpack.decode(frame) for method, frame in found["answers"].items()}
    cache = MetadataCache()
    cache.update(answers["metadata"])
    assert cache.brokers
    for row in answers["register_broker"][4]:
        record_from_wire(row)
    assert PartitionState.from_wire(answers["register_replica"][1]).replicas
    _, _, _, (_, rows) = decode_header(found["requests"]["metadata_update"][8:])
    for row in rows:
        record_from_wire(row)


@pytest.mark.parametrize("release", RELEASES)
def test_a_data_directory_of_a_release_gives_the_same_records_groups_and_offsets(release: str, tmp_path: Path) -> None:
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
            found = await read(cluster)
            await use(cluster)
            assert cluster.fatal == []
            return found

    assert asyncio.run(story()) == json.loads((ROOT / release / "expected.json").read_text(encoding="utf-8"))


async def use(cluster: LocalCluster) -> None:
    """Go on where that release stopped."""
    async with AsyncProducer(**clients(cluster)) as producer, AsyncAdmin(**clients(cluster)) as admin:
        for topic in TOPICS:
            await (await producer.send(topic, value=b"more", partition=0))
        await admin.create_topic("later", partitions=1, replication_factor=1)
        await admin.delete_group("by-hand")
