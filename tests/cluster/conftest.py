"""Clients of the cluster that stays (`shared_ray.py`), and a topic for a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import raylog


@pytest.fixture
def admin(three_brokers: raylog.Cluster) -> Iterator[raylog.Admin]:
    """An administrator."""
    with raylog.Admin() as found:
        yield found


@pytest.fixture
def producer(three_brokers: raylog.Cluster) -> Iterator[raylog.Producer]:
    """A producer that collects records for 5 ms."""
    with raylog.Producer(linger_ms=5) as found:
        yield found


@pytest.fixture
def topic(admin: raylog.Admin, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of two partitions, three replicas each, named after the test."""
    name = request.node.name.removeprefix("test_")[:60]
    admin.create_topic(name, partitions=2, replication_factor=3)
    yield name
    admin.delete_topic(name)
