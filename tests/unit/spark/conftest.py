"""A cluster in memory with a topic to read."""

from collections.abc import Iterator

import pytest

from tests.unit.client.toy_server import ToyCluster
from tests.unit.spark.support import fill


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    """Two brokers; topic `orders` with 100 and 50 records in its two partitions."""
    with ToyCluster(brokers=2) as running:
        running.create_topic("orders", 2)
        fill(running, "orders", 0, [30, 30, 40])
        fill(running, "orders", 1, [50])
        yield running
