"""Snapshots of the metadata: the log stays short, nothing is lost, and damage in them is handled like any other."""

import shutil
from pathlib import Path

import pytest

from raylog.actors.metadata.quorum_runner import QuorumRunner
from raylog.actors.metadata.snapshot import SNAPSHOT, MetadataSnapshot, read_snapshot
from raylog.base.errors import DataDirectoryError
from raylog.storage.batch.header import iter_headers
from tests.cluster.controller.test_metadata_quorum import (
    VOTERS,
    counts_again,
    cut,
    entered,
    flip,
    identity,
    metadata_folder,
    remove_log,
)
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

BETWEEN = 3_000
OFTEN = {
    "broker.session.timeout.ms": "1000",
    "metadata.log.max.record.bytes.between.snapshots": str(BETWEEN),
}


def snapshot(cluster: LocalCluster, broker: int) -> MetadataSnapshot:
    found = read_snapshot(metadata_folder(cluster, broker))
    return MetadataSnapshot(0, 0, b"") if found is None else found


def tail(cluster: LocalCluster, broker: int) -> bytes:
    """The batches of a voter's log after its snapshot."""
    end, parts = snapshot(cluster, broker).end, []
    for path in sorted(metadata_folder(cluster, broker).glob("__cluster_metadata-0/*.log")):
        data = path.read_bytes()
        parts += [data[at : at + head.size] for at, head in iter_headers(data) if head.base_offset >= end]
    return b"".join(parts)


def store(cluster: LocalCluster) -> QuorumRunner:
    found = cluster.running()._metadata
    assert found is not None
    return found.runner


def alike(cluster: LocalCluster) -> bool:
    """Every voter has the controller's snapshot and the same log after it, and no append is in flight."""
    if cluster.controller is None or cluster.running()._metadata is None:
        return False
    held, log = store(cluster).snapshot, store(cluster)
    if held is None or log.committed_offset < log.log_end_offset:
        return False
    wanted = (held, b"".join(payload for _, payload in log.batches))
    try:
        return all((snapshot(cluster, broker), tail(cluster, broker)) == wanted for broker in VOTERS)
    except FileNotFoundError:
        return False  # a voter recreates its copy, or removes what the snapshot covers


async def create(talk: Talk, *names: str) -> None:
    for name in names:
        await talk.create(name, replicas=1)


def numbered(first: int, end: int) -> list[str]:
    return [f"t{number}" for number in range(first, end)]


@in_cluster(config=OFTEN)
async def test_a_snapshot_replaces_the_log_on_every_voter_and_in_the_controller(
    cluster: LocalCluster, talk: Talk
) -> None:
    await create(talk, *numbered(0, 30))
    await eventually(lambda: alike(cluster), what="every voter has the last snapshot")
    first = snapshot(cluster, 1)
    log = store(cluster)
    assert log.batches[0][0].start >= first.end if log.batches else True
    assert sum(len(payload) for _, payload in log.batches) < 2 * max(BETWEEN, first.size)
    ids = {name: topic.topic_id for name, topic in cluster.running().image.topics.items()}
    for _ in range(2):
        await cluster.stop_controller()
        await cluster.start_controller()
        image = cluster.running().image
        assert {name: topic.topic_id for name, topic in image.topics.items()} == ids
        assert image.version == store(cluster).log_end_offset
    await cluster.stop()
    await cluster.start()
    await cluster.all_home()
    assert {name: topic.topic_id for name, topic in cluster.running().image.topics.items()} == ids
    await create(talk, "later")
    assert snapshot(cluster, 1).end >= first.end
    await eventually(lambda: alike(cluster))


@in_cluster(config=OFTEN)
async def test_a_voter_that_was_away_gets_the_snapshot_and_the_tail(cluster: LocalCluster, talk: Talk) -> None:
    await create(talk, "before")
    await cluster.stop_broker(3)
    old = identity(cluster, 3)
    await create(talk, *numbered(0, 20))
    await eventually(lambda: snapshot(cluster, 1).end > 0 and snapshot(cluster, 1) == snapshot(cluster, 2))
    assert snapshot(cluster, 3).end < snapshot(cluster, 1).end
    await cluster.start_broker(3)
    await eventually(lambda: alike(cluster), what="the voter has caught up")
    assert identity(cluster, 3) == old
    await cluster.stop_broker(1)  # broker 3, which was away, is needed now
    await cluster.stop_controller()
    await cluster.start_controller()
    assert set(cluster.running().image.topics) == {"before", *numbered(0, 20)}


def corrupt_snapshot(cluster: LocalCluster, broker: int) -> None:
    path = metadata_folder(cluster, broker) / SNAPSHOT
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)


def cut_snapshot(cluster: LocalCluster, broker: int) -> None:
    path = metadata_folder(cluster, broker) / SNAPSHOT
    path.write_bytes(path.read_bytes()[:-1])


def remove_snapshot(cluster: LocalCluster, broker: int) -> None:
    (metadata_folder(cluster, broker) / SNAPSHOT).unlink()


DAMAGES = [corrupt_snapshot, cut_snapshot, remove_snapshot]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_with_a_damaged_snapshot_is_set_aside_and_rebuilt(tmp_path: Path, damage: object) -> None:
    @in_cluster(config=OFTEN)
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(talk, *numbered(0, 20))
        await eventually(lambda: alike(cluster) and len(entered(cluster)) == 3)
        old = identity(cluster, 1)
        await cluster.stop_controller()
        await cluster.stop_broker(1)
        assert callable(damage)
        damage(cluster, 1)
        await cluster.start_broker(1)
        await cluster.start_controller()
        assert len(cluster.running().image.topics) == 20
        await eventually(lambda: counts_again(cluster, 1, old), what="the new copy votes")
        await eventually(lambda: alike(cluster))
        assert list(metadata_folder(cluster, 1).parent.glob("metadata.damaged.*"))

    story(tmp_path)


@pytest.mark.parametrize("damage", [*DAMAGES, cut, flip, remove_log])
def test_damage_on_a_majority_is_refused_and_a_backup_helps(tmp_path: Path, damage: object) -> None:
    @in_cluster(config=OFTEN)
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await create(talk, *numbered(0, 20))
        await eventually(lambda: alike(cluster) and len(entered(cluster)) == 3)
        await cluster.stop()
        backup = shutil.copytree(metadata_folder(cluster, 1), tmp_path / "backup")
        assert callable(damage)
        for broker in (1, 2):
            damage(cluster, broker)
        for broker in VOTERS:
            await cluster.start_broker(broker)
        error = await refused(cluster.start_controller(), DataDirectoryError)
        assert "lost on 2 of 3 voters (brokers 1, 2)" in str(error)
        assert "from a backup" in str(error)
        cluster.controller = None
        await cluster.stop_broker(1)
        shutil.rmtree(metadata_folder(cluster, 1))
        shutil.copytree(backup, metadata_folder(cluster, 1))
        await cluster.start_broker(1)
        await cluster.start_controller()
        await create(talk, "later")
        assert set(cluster.running().image.topics) == {"later", *numbered(0, 20)}
        await eventually(lambda: alike(cluster), what="the third copy is rebuilt")

    story(tmp_path)
