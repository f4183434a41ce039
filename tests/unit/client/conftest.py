"""A toy cluster for each test that uses the fixture."""

from collections.abc import Iterator

import pytest

from tests.unit.client.toy_server import ToyCluster


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    """Two brokers, no topics."""
    with ToyCluster(brokers=2) as toy:
        yield toy
