"""A private Ray with a Raylog cluster in it, for the tests of datasets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import raylog
from tests.cluster.ray_support import own_ray

CONFIG = {
    "replica.sleep.after.ms": "-1",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raylog.Cluster]:
    """A cluster of two brokers, found through Ray. Datasets show no progress bars."""
    with own_ray():
        from ray.data import DataContext

        DataContext.get_current().enable_progress_bars = False
        running = raylog.start(tmp_path_factory.mktemp("data"), brokers=2, config=CONFIG)
        yield running
        running.stop()


@pytest.fixture
def admin(cluster: raylog.Cluster) -> Iterator[raylog.Admin]:
    """For topics and tokens."""
    with raylog.Admin() as found:
        yield found
