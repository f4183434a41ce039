"""Operator errors: each has one clear message, and docs/operations.md has the remedy."""

from pathlib import Path

import pytest

from raylog.actors.actor_specs import BrokerSpec
from raylog.actors.broker.server import BrokerServer
from raylog.base.errors import DataDirectoryError, InconsistentClusterId, InvalidReplicationFactor, OffsetOutOfRange
from raylog.launch.running_config import ignored_settings, what_was_ignored
from raylog.storage.errors import DirectoryInUse, WrongDirectory
from raylog.storage.folder_lock import FolderLock
from tests.cluster.local_cluster import CLUSTER_ID, SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


def documented(message: str) -> bool:
    """Whether a row of the table of messages quotes this one."""
    section = OPERATIONS.read_text(encoding="utf-8").partition("### Messages and what to do")[2].partition("\n### ")[0]
    quoted = [cell.partition("|")[0].split("`")[1::2] for cell in section.split("\n| ") if cell.startswith("`")]
    return any(quote in message for row in quoted for quote in row if " " in quote or "=" in quote)


def broker_on(cluster: LocalCluster, folder: Path, *, broker: int | None, cluster_id: str = CLUSTER_ID) -> BrokerServer:
    spec = BrokerSpec(broker=broker, folder=folder, secret=SECRET, cluster_id=cluster_id, node_id="here")
    return BrokerServer(spec, find_controller=cluster.find_controller, factory=cluster, on_fatal=cluster.fatal.append)


def test_only_what_the_table_quotes_counts_as_documented() -> None:
    assert documented("d is in use by process 7")
    assert not documented("This is in no table")


@in_cluster()
async def test_more_replicas_than_brokers(cluster: LocalCluster, talk: Talk) -> None:
    error = await refused(talk.broker("create_topic", ["t", 1, 4, None, {}, False, 1000]), InvalidReplicationFactor)
    assert documented(str(error)), error
    assert "t" not in cluster.running().image.topics


@in_cluster(brokers=1)
async def test_two_brokers_on_one_directory(cluster: LocalCluster, talk: Talk) -> None:
    second = broker_on(cluster, cluster.root / "broker-1", broker=None)
    with pytest.raises(DirectoryInUse) as error:
        await second.start()
    assert documented(str(error.value)), error
    await second.stop()
    await talk.create("t", replicas=1)


@in_cluster(brokers=1)
async def test_a_brokers_directory_of_another_cluster_or_broker(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    await cluster.stop_broker(1)
    files = sorted(str(path) for path in (cluster.root / "broker-1").rglob("*"))
    for given in ({"broker": 1, "cluster_id": "d" * 32}, {"broker": 2}):
        stranger = broker_on(cluster, cluster.root / "broker-1", **given)
        with pytest.raises(WrongDirectory) as error:
            await stranger.start()
        assert documented(str(error.value)), error
        await stranger.stop()
    assert sorted(str(path) for path in (cluster.root / "broker-1").rglob("*")) == files, "nothing was touched"
    await cluster.start_broker(1)
    await talk.whole("t")


@in_cluster(brokers=1)
async def test_metadata_of_another_cluster(cluster: LocalCluster, talk: Talk) -> None:
    await cluster.stop()
    cluster.cluster_id = "d" * 32
    error = await refused(cluster.start(), InconsistentClusterId)
    assert documented(str(error)), error
    cluster.controller = None


def test_a_folder_that_is_held(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "held")
    with pytest.raises(DataDirectoryError) as error:
        FolderLock(tmp_path / "held", wait_s=0.05)
    assert documented(str(error.value)), error
    lock.release()


@in_cluster()
async def test_a_second_controller_started_by_hand(cluster: LocalCluster, talk: Talk) -> None:
    older = cluster.running()
    await cluster.start_controller()
    await eventually(lambda: bool(cluster.fatal), what="the older controller ends")
    assert documented(cluster.fatal[0]), cluster.fatal
    await older.stop()
    cluster.fatal.clear()
    await talk.create("t")


@in_cluster(brokers=1)
async def test_records_that_are_not_committed_are_not_deleted(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", replicas=1)
    head, endpoint = await talk.leader("t")
    error = await refused(talk.call(endpoint, "delete_records", [*head, 5, 1000]), OffsetOutOfRange)
    assert documented(str(error)), error


def test_ignored_settings_are_named_with_the_values_in_force() -> None:
    running = {"default.replication.factor": "3"}
    assert ignored_settings({"default.replication.factor": 3, "num.partitions": 1}, running) == {}
    ignored = ignored_settings({"default.replication.factor": 2, "num.partitions": "6"}, running)
    assert ignored == {"default.replication.factor": "2", "num.partitions": "6"}
    message = what_was_ignored(ignored, running)
    assert documented(message), message
    assert "default.replication.factor=2 (it runs with 3), num.partitions=6 (it runs with 1)" in message
