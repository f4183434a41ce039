"""A Ray cluster of several nodes (raylets on one machine): each node that offers ``raylog`` gets one broker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait until the condition holds; AssertionError after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s: {what}"
        time.sleep(0.1)


def test_nodes_get_brokers_when_they_join_and_keep_their_identity(tmp_path: Path) -> None:
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
        ray.init(address=nodes.address, log_to_driver=False)
        cluster = raylog.start(tmp_path / "head", timeout_s=60, allow_plaintext=True)
        assert online(cluster) == {1}
        second = add("second")
        wait_for(lambda: online(cluster) == {1, 2}, "the second node has a broker")
        with raylog.Admin() as admin:
            admin.create_topic("t", partitions=1, replication_factor=2, config={"min.insync.replicas": 1})
        with raylog.Producer() as producer:
            assert producer.send("t", b"before").result(30).offset == 0
        nodes.remove_node(second, allow_graceful=False)
        wait_for(lambda: online(cluster) == {1}, "the lost node's broker is offline")
        with raylog.Producer() as producer:
            assert producer.send("t", b"meanwhile").result(30).offset == 1
        add("second")
        wait_for(lambda: online(cluster) == {1, 2}, "the node is back with its broker's identity")
        wait_for(
            lambda: set(cluster.status()["topics"]["t"][0]["isr"]) == {1, 2}, "its replica has caught up", timeout_s=90
        )
        assert os.path.exists(tmp_path / "second" / "broker" / "t-0")
        cluster.stop()
    finally:
        ray.shutdown()
        nodes.shutdown()  # type: ignore[no-untyped-call]
