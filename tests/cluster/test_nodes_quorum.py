"""Three nodes (raylets on one machine) with a voter each: losing one of them stops neither changes nor a new start."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ray_support import ask, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_metadata_survives_the_loss_of_a_node_and_of_the_controller(tmp_path: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    import raylog

    nodes = RayCluster()

    def add(name: str) -> Any:
        return nodes.add_node(
            num_cpus=1,
            resources={"raylog": 1},
            env_vars={"RAYLOG_DATA_DIR": str(tmp_path / name)},
            object_store_memory=80 * 1024 * 1024,
            include_dashboard=False,
        )

    def online(cluster: raylog.Cluster) -> set[int]:
        return {one["broker"] for one in cluster.status()["brokers"] if one["online"]}

    try:
        add("head")
        add("second")
        third = add("third")
        ray.init(address=nodes.address, log_to_driver=False)
        cluster = raylog.start(tmp_path / "head", timeout_s=120, allow_plaintext=True)
        assert (tmp_path / "head" / "metadata-voters").read_text().strip() == "1,2,3"
        assert online(cluster) == {1, 2, 3}
        with raylog.Admin() as admin:
            admin.create_topic("before", partitions=1, replication_factor=1)
            nodes.remove_node(third, allow_graceful=False)
            wait_for(lambda: len(online(cluster)) == 2, "the lost node's broker is offline")
            admin.create_topic("during", partitions=1, replication_factor=1)
            pid = ask("controller", "pid")
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: ask("controller", "pid") != pid, "Ray restarts the controller")
            admin.create_topic("after", partitions=1, replication_factor=1)
        assert set(cluster.status()["topics"]) >= {"before", "during", "after"}
        add("third")
        wait_for(lambda: online(cluster) == {1, 2, 3}, "the node is back with its broker's identity")
        fresh = list(tmp_path.glob("*/broker/metadata/__cluster_metadata-0/*.log"))
        assert len(fresh) == 3
        wait_for(lambda: len({path.read_bytes() for path in fresh}) == 1, "the voter has caught up")
        cluster.stop()
        cluster = raylog.start(tmp_path / "head", timeout_s=120, allow_plaintext=True)
        assert set(cluster.status()["topics"]) >= {"before", "during", "after"}
        cluster.stop()
    finally:
        ray.shutdown()
        nodes.shutdown()  # type: ignore[no-untyped-call]


def test_the_head_loses_its_disk_after_the_third_broker_joined(tmp_path: Path) -> None:
    """One broker begins alone, as on the head of a Ray cluster; the others join later; then the head's disk is lost."""
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    import raylog

    def add(nodes: Any, name: str) -> None:
        nodes.add_node(
            num_cpus=1,
            resources={"raylog": 1},
            env_vars={"RAYLOG_DATA_DIR": str(tmp_path / name)},
            object_store_memory=80 * 1024 * 1024,
            include_dashboard=False,
        )

    def voters(cluster: raylog.Cluster) -> list[int]:
        found: list[int] = cluster.status()["metadata_voters"]["voters"]
        return found

    nodes = RayCluster()
    try:
        add(nodes, "head")
        ray.init(address=nodes.address, log_to_driver=False)
        cluster = raylog.start(tmp_path / "head", timeout_s=120, allow_plaintext=True)
        assert voters(cluster) == [1]
        for name in ("second", "third"):
            add(nodes, name)
        wait_for(lambda: voters(cluster) == [1, 2, 3], "the voters grow")
        with raylog.Admin() as admin, raylog.Producer() as producer:
            admin.create_topic("kept", partitions=1, replication_factor=3)
            producer.send("kept", b"record").result(30)
        cluster.stop()
    finally:
        ray.shutdown()
        nodes.shutdown()  # type: ignore[no-untyped-call]
    cluster_id = (tmp_path / "head" / "cluster-id").read_text()[:32]
    shutil.rmtree(tmp_path / "head")
    nodes = RayCluster()
    try:
        for name in ("head", "second", "third"):
            add(nodes, name)
        ray.init(address=nodes.address, log_to_driver=False)
        cluster = raylog.start(tmp_path / "head", timeout_s=120, allow_plaintext=True)
        status = cluster.status()
        assert status["cluster_id"] == cluster_id, "no second cluster was created"
        assert set(voters(cluster)) >= {2, 3}
        assert "kept" in status["topics"]
        wait_for(lambda: 4 in {one["broker"] for one in cluster.status()["brokers"]}, "the new head has a new broker")
        with raylog.Consumer("kept", auto_offset_reset="earliest") as consumer:
            found: list[bytes | None] = []
            wait_for(
                lambda: bool(found) or bool(_extend(found, consumer.poll(timeout_ms=500))), "the record is still there"
            )
        assert found == [b"record"]
        cluster.stop()
    finally:
        ray.shutdown()
        nodes.shutdown()  # type: ignore[no-untyped-call]


def _extend(found: list[bytes | None], batches: Any) -> list[bytes | None]:
    found += [record.value for records in batches.values() for record in records]
    return found
