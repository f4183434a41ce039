"""The metadata log on three voters: killed controllers, lost voters, damaged logs, two controllers."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from raylog.base.errors import DataDirectoryError, NotController, RaylogError, TopicAlreadyExists
from raylog.storage.batch.header import HEADER_BYTES
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

VOTERS = (1, 2, 3)
QUICK = {"broker.session.timeout.ms": "1000"}


def metadata_folder(cluster: LocalCluster, broker: int) -> Path:
    return cluster.root / f"broker-{broker}" / "metadata"


def log_file(cluster: LocalCluster, broker: int) -> Path:
    return next(metadata_folder(cluster, broker).glob("__cluster_metadata-0/*.log"))


def logs_agree(cluster: LocalCluster) -> bool:
    """Every voter's log is byte for byte the same, and no append is in flight."""
    store = cluster.running()._metadata
    if store is None or store.runner.committed_offset < store.runner.log_end_offset:
        return False
    try:
        return len({log_file(cluster, broker).read_bytes() for broker in VOTERS}) == 1
    except (FileNotFoundError, StopIteration):
        return False  # a voter recreates its copy


def entered(cluster: LocalCluster) -> dict[str, str]:
    return dict(cluster.running().image.voters)


def identity(cluster: LocalCluster, broker: int) -> str:
    path = metadata_folder(cluster, broker) / "voter"
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return ""  # not there yet, or its folder was set aside between two looks
    if "admitted=1" not in lines:
        return ""
    return next((line.partition("=")[2] for line in lines if line.startswith("identity=")), "")


def counts_again(cluster: LocalCluster, broker: int, old: str) -> bool:
    """A copy was recreated, and belongs to a voter."""
    return identity(cluster, broker) not in ("", old) and entered(cluster).get(str(broker)) == identity(cluster, broker)


@in_cluster(config=QUICK)
async def test_topics_survive_controllers_killed_at_any_moment(cluster: LocalCluster, talk: Talk) -> None:
    draw, acknowledged, stop = random.Random(7), {}, False

    async def create_repeatedly() -> None:
        number = 0
        while not stop:
            name = f"t{number}"
            try:
                reply = await talk.broker("create_topic", [name, 1, 1, None, {}, False, 100])
                acknowledged[name] = reply.args[0]
                number += 1
            except TopicAlreadyExists:
                number += 1  # an attempt whose answer was lost had succeeded
            except RaylogError:
                continue

    creating = asyncio.create_task(create_repeatedly())
    for _ in range(8):
        seen = len(acknowledged)
        await eventually(lambda seen=seen: len(acknowledged) > seen)  # type: ignore[misc]
        await asyncio.sleep(draw.random() * 0.02)
        await cluster.stop_controller()
        await cluster.start_controller()
    stop = True
    await creating
    assert cluster.running().image.controller_epoch == 9
    topics = cluster.running().image.topics
    assert {name: topics[name].topic_id for name in acknowledged} == acknowledged
    await eventually(lambda: logs_agree(cluster), what="all voters have the same log")


@in_cluster(config=QUICK)
async def test_a_missing_voter_blocks_nothing_and_catches_up(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("before", replicas=1)
    await cluster.stop_broker(3)
    await talk.create("during", replicas=1)
    await cluster.stop_controller()
    await cluster.start_controller()
    await talk.create("after", replicas=1)
    await cluster.start_broker(3)
    await eventually(lambda: logs_agree(cluster), what="the voter catches up")
    assert set(cluster.running().image.topics) == {"before", "during", "after"}


@in_cluster(config=QUICK)
async def test_a_voter_without_its_directory_counts_again_as_a_new_one(cluster: LocalCluster, talk: Talk) -> None:
    await eventually(lambda: set(entered(cluster)) == {"1", "2", "3"})
    old = identity(cluster, 2)
    assert entered(cluster)["2"] == old
    await cluster.stop_broker(2)
    shutil.rmtree(cluster.root / "broker-2")
    await cluster.stop_controller()
    await cluster.start_controller()
    await cluster.start_broker(2)
    await eventually(lambda: counts_again(cluster, 2, old), what="the new copy votes")
    await eventually(lambda: logs_agree(cluster))
    await cluster.broker_servers[2].wait_registered(10)
    await cluster.stop_broker(3)
    await cluster.stop_controller()
    await cluster.start_controller()
    await talk.create("t", replicas=1)


def cut(cluster: LocalCluster, broker: int) -> None:
    path = log_file(cluster, broker)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip(cluster: LocalCluster, broker: int) -> None:
    path = log_file(cluster, broker)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 2] ^= 0xFF
    path.write_bytes(data)
    path.with_name("clean-shutdown").unlink(missing_ok=True)


def remove_log(cluster: LocalCluster, broker: int) -> None:
    shutil.rmtree(log_file(cluster, broker).parent)


def remove_promise(cluster: LocalCluster, broker: int) -> None:
    (metadata_folder(cluster, broker) / "voter").unlink()


DAMAGES = [cut, flip, remove_log, remove_promise]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_is_set_aside_and_rebuilt_from_the_others(tmp_path: Path, damage: object) -> None:
    @in_cluster(config=QUICK)
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        for number in range(5):
            await talk.create(f"t{number}", replicas=1)
        await eventually(lambda: logs_agree(cluster) and len(entered(cluster)) == 3)
        old = identity(cluster, 1)
        await cluster.stop_controller()
        await cluster.stop_broker(1)
        assert callable(damage)
        damage(cluster, 1)
        await cluster.start_broker(1)
        await cluster.start_controller()
        assert len(cluster.running().image.topics) == 5
        await eventually(lambda: counts_again(cluster, 1, old), what="the new copy votes")
        await eventually(lambda: logs_agree(cluster))
        assert list(metadata_folder(cluster, 1).parent.glob("metadata.damaged.*"))

    story(tmp_path)


@in_cluster(config=QUICK)
async def test_a_majority_of_lost_copies_is_refused_with_what_to_do(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    await eventually(lambda: logs_agree(cluster) and len(entered(cluster)) == 3)
    await cluster.stop_controller()
    aside = {}
    for broker in (1, 2):
        await cluster.stop_broker(broker)
        aside[broker] = metadata_folder(cluster, broker).rename(cluster.root / f"kept-{broker}")
        await cluster.start_broker(broker)
    error = await refused(cluster.start_controller(), DataDirectoryError)
    assert "lost on 2 of 3 voters (brokers 1, 2)" in str(error)
    assert "from a backup" in str(error)
    cluster.controller = None
    await cluster.stop_broker(1)
    shutil.rmtree(metadata_folder(cluster, 1))
    aside[1].rename(metadata_folder(cluster, 1))
    await cluster.start_broker(1)
    await cluster.start_controller()
    await talk.create("u", replicas=1)
    assert set(cluster.running().image.topics) == {"t", "u"}


@in_cluster(config=QUICK)
async def test_partitions_without_any_metadata_are_not_taken_for_a_new_cluster(
    cluster: LocalCluster, talk: Talk
) -> None:
    await talk.create("t", partitions=3, replicas=1)
    await cluster.stop()
    for broker in VOTERS:
        shutil.rmtree(metadata_folder(cluster, broker))
        await cluster.start_broker(broker)
    error = await refused(cluster.start_controller(), DataDirectoryError)
    assert "lost on 3 of 3 voters" in str(error)
    cluster.controller = None


@in_cluster(config=QUICK)
async def test_of_two_controllers_the_older_is_fenced(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    older = cluster.controller
    assert older is not None
    await cluster.start_controller()
    await eventually(lambda: bool(cluster.fatal), what="the older controller learns of the newer one")
    assert "a newer controller runs" in cluster.fatal[0]
    late = talk.call(older.endpoint, "create_topic", ["late", 1, 1, None, {}, False, 100])
    await refused(asyncio.wait_for(late, 1), NotController)
    await older.stop()
    cluster.fatal.clear()
    await talk.create("u", replicas=1)
    assert set(cluster.running().image.topics) == {"t", "u"}
    await eventually(lambda: logs_agree(cluster))


@in_cluster(config=QUICK)
async def test_without_a_majority_the_controller_names_the_missing_voters(cluster: LocalCluster, talk: Talk) -> None:
    await cluster.stop_controller()
    for broker in (1, 3):
        await cluster.stop_broker(broker)
    error = await refused(cluster.new_controller(quorum_timeout_s=0.5).start(), NotController)
    assert "brokers 1, 3 did not answer" in str(error)
    await cluster.start_broker(1)
    await cluster.start_controller()
    await talk.create("t", replicas=1)


@in_cluster()
async def test_everything_comes_back_from_the_voters(cluster: LocalCluster, talk: Talk) -> None:
    ids = {name: await talk.create(name, partitions=2) for name in ("t", "u")}
    assert await talk.produce("t", b"a") == 0
    for _ in range(2):
        await cluster.stop()
        await cluster.start()
        await cluster.all_home()
        assert {name: topic.topic_id for name, topic in cluster.running().image.topics.items()} == ids
        await talk.whole("t")
    assert await talk.produce("t", b"b") == 1


@in_cluster(brokers=1)
async def test_one_broker_is_its_own_majority(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    await cluster.stop()
    await cluster.start()
    assert "t" in cluster.running().image.topics
