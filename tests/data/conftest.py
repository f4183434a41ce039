"""A private Ray of two nodes with a Raylog broker on each, for the tests of datasets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import raylog
from tests.cluster.ray_support import AWAKE, RayNodes, ray_folder

CONFIG = {**AWAKE, "transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raylog.Cluster]:
    """A cluster of two brokers on two nodes, found through Ray. Datasets show no progress bars."""
    with ray_folder(), RayNodes(tmp_path_factory.mktemp("data")) as nodes:
        for name in ("a", "b"):
            nodes.add(name)
        running = nodes.start("a", CONFIG)
        from ray.data import DataContext

        DataContext.get_current().enable_progress_bars = False
        yield running
        running.stop()


@pytest.fixture
def admin(cluster: raylog.Cluster) -> Iterator[raylog.Admin]:
    """For topics and tokens."""
    with raylog.Admin() as found:
        yield found
