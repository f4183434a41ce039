"""Three nodes (raylets on one machine) with a voter each: losing one of them blocks neither changes nor a new start."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import raylog
from tests.cluster.ray_support import RayNodes, call_actor, online
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(300)]


def test_metadata_survives_the_loss_of_a_node_and_of_the_controller(tmp_path: Path) -> None:
    with RayNodes(tmp_path) as nodes:
        _, _, third = [nodes.add(name) for name in ("head", "second", "third")]
        cluster = nodes.start("head")
        assert (tmp_path / "head" / "metadata-voters").read_text().strip() == "1,2,3"
        assert online(cluster) == {1, 2, 3}
        with raylog.Admin() as admin:
            admin.create_topic("before", partitions=1, replication_factor=1)
            nodes.remove(third)
            wait_for(lambda: len(online(cluster)) == 2, "the lost node's broker is offline")
            admin.create_topic("during", partitions=1, replication_factor=1)
            pid = call_actor("controller", "pid")
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: call_actor("controller", "pid") != pid, "Ray restarts the controller")
            admin.create_topic("after", partitions=1, replication_factor=1)
        assert set(cluster.status()["topics"]) >= {"before", "during", "after"}
        nodes.add("third")
        wait_for(lambda: online(cluster) == {1, 2, 3}, "the node is back with its broker's identity")
        fresh = list(tmp_path.glob("*/broker/metadata/__cluster_metadata-0/*.log"))
        assert len(fresh) == 3
        wait_for(lambda: len({path.read_bytes() for path in fresh}) == 1, "the voter has caught up")
        cluster.stop()
        cluster = nodes.start("head")
        assert set(cluster.status()["topics"]) >= {"before", "during", "after"}
        cluster.stop()


def test_the_head_loses_its_disk_after_the_third_broker_joined(tmp_path: Path) -> None:
    """One broker begins alone, as on the head of a Ray cluster; the others join later; then the head's disk is lost."""

    def voters(cluster: raylog.Cluster) -> list[int]:
        found: list[int] = cluster.status()["metadata_voters"]["voters"]
        return found

    with RayNodes(tmp_path) as nodes:
        nodes.add("head")
        cluster = nodes.start("head")
        assert voters(cluster) == [1]
        for name in ("second", "third"):
            nodes.add(name)
        wait_for(lambda: voters(cluster) == [1, 2, 3], "the voters grow")
        with raylog.Admin() as admin, raylog.Producer() as producer:
            admin.create_topic("kept", partitions=1, replication_factor=3)
            producer.send("kept", b"record").result(30)
        cluster.stop()
    cluster_id = (tmp_path / "head" / "cluster-id").read_text()[:32]
    shutil.rmtree(tmp_path / "head")
    with RayNodes(tmp_path) as nodes:
        for name in ("head", "second", "third"):
            nodes.add(name)
        cluster = nodes.start("head")
        status = cluster.status()
        assert status["cluster_id"] == cluster_id, "no second cluster was created"
        assert set(voters(cluster)) >= {2, 3}
        assert "kept" in status["topics"]
        wait_for(
            lambda: 4 in {broker["broker"] for broker in cluster.status()["brokers"]}, "the new head has a new broker"
        )
        with raylog.Consumer("kept", auto_offset_reset="earliest") as consumer:
            found: list[bytes | None] = []
            wait_for(
                lambda: bool(found) or bool(_extend(found, consumer.poll(timeout_ms=500))), "the record is still there"
            )
        assert found == [b"record"]
        cluster.stop()


def _extend(found: list[bytes | None], batches: Any) -> list[bytes | None]:
    found += [record.value for records in batches.values() for record in records]
    return found
