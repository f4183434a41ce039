"""A Ray cluster of several nodes (raylets on one machine): each node that offers ``raylog`` gets one broker."""

from pathlib import Path

import pytest

import raylog
from tests.cluster.ray_support import RayNodes, online
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def test_groups_are_spread_over_fifty_coordinators_on_nodes(tmp_path: Path) -> None:
    with RayNodes(tmp_path) as nodes:
        nodes.add("head")
        cluster = nodes.start("head", config={})
        config = cluster.status()["config"]
        assert (config["offsets.topic.num.partitions"], config["replica.spares"]) == ("50", "6")
        cluster.stop()
        cluster = nodes.start(
            "head", config={}
        )  # before the first group, whose partition brokers and the controller agree on
        with raylog.Admin() as admin:
            admin.create_topic("t", partitions=1, replication_factor=1)
        for offset, group in enumerate("abc"):
            with raylog.Consumer(group_id=group) as consumer:
                consumer.commit({raylog.TopicPartition("t", 0): offset})
        partitions = cluster.status()["topics"]["__consumer_offsets"]
        assert len(partitions) == 50
        assert sum(partition["asleep"] for partition in partitions) == 47
        cluster.stop()


def test_nodes_get_brokers_when_they_join_and_keep_their_identity(tmp_path: Path) -> None:
    with RayNodes(tmp_path) as nodes:
        nodes.add("head")
        cluster = nodes.start("head")
        assert online(cluster) == {1}
        second = nodes.add("second")
        wait_for(lambda: online(cluster) == {1, 2}, "the second node has a broker")
        with raylog.Admin() as admin:
            admin.create_topic("t", partitions=1, replication_factor=2, config={"min.insync.replicas": 1})
        with raylog.Producer() as producer:
            assert producer.send("t", b"before").result(30).offset == 0
        nodes.remove(second)
        wait_for(lambda: online(cluster) == {1}, "the lost node's broker is offline")
        with raylog.Producer() as producer:
            assert producer.send("t", b"meanwhile").result(30).offset == 1
        nodes.add("second")
        wait_for(lambda: online(cluster) == {1, 2}, "the node is back with its broker's identity")
        wait_for(
            lambda: set(cluster.status()["topics"]["t"][0]["isr"]) == {1, 2}, "its replica has caught up", timeout_s=90
        )
        assert (tmp_path / "second" / "broker" / "t-0").exists()
        cluster.stop()
