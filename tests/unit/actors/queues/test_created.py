"""Topics for letters and copies: the source's replicas, or as many as there are brokers for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raylog.actors.queues.created import IN_SYNC, create_as_source
from raylog.base.errors import InvalidReplicationFactor, RaylogError, TopicAlreadyExists
from raylog.protocol.admin import CreateTopicRequest
from raylog.protocol.broker import MetadataPartition, MetadataTopic


def source(replicas: int) -> MetadataTopic:
    brokers = list(range(1, replicas + 1))
    row = MetadataPartition(0, 1, 0, "h", 1, brokers, brokers, [])
    return MetadataTopic(0, "id", "jobs", is_internal=False, partitions=[row] if replicas else [], config={})


class Host:
    """A controller with so many brokers online."""

    def __init__(self, brokers: int, *errors: RaylogError) -> None:
        self.brokers = brokers
        self.errors = list(errors)
        self.config = {IN_SYNC: "2"}
        self.requests: list[CreateTopicRequest] = []

    async def call_controller(self, _: str, request: CreateTopicRequest) -> None:
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        if request.replication_factor > self.brokers:
            raise InvalidReplicationFactor(f"{self.brokers} brokers are online")


def created(host: Host, replicas: int) -> list[tuple[int, Any]]:
    """The factors that were tried, each with the least number in sync."""
    made: Any = host
    asyncio.run(create_as_source(made, source(replicas), "dead", 2, {"retention.ms": "-1"}))
    assert all(request.configs["retention.ms"] == "-1" for request in host.requests)
    return [(request.replication_factor, request.configs.get(IN_SYNC)) for request in host.requests]


def test_letters_have_as_many_replicas_as_their_source() -> None:
    assert created(Host(3), 3) == [(3, "2")]
    assert created(Host(3), 1) == [(1, None)]


def test_while_brokers_are_away_there_are_fewer() -> None:
    assert created(Host(1), 3) == [(3, "2"), (2, None), (1, None)]


def test_a_source_that_is_not_known_yet_leaves_it_to_the_cluster() -> None:
    assert created(Host(3), 0) == [(-1, None)]


def test_a_topic_that_another_leader_has_created_is_taken() -> None:
    assert created(Host(3, TopicAlreadyExists("it is there")), 3) == [(3, "2")]


def test_without_any_broker_the_refusal_is_raised() -> None:
    with pytest.raises(InvalidReplicationFactor):
        created(Host(0), 2)
