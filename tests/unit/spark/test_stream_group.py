"""A stream with `kafka.group.id` shows what it has processed in that group, and goes on when it cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from raylog.spark.reading.admission import Limits
from raylog.spark.reading.planning import StreamPlanner
from tests.unit.client.consumer_support import with_coordinator
from tests.unit.client.toy_coordinator import ToyCoordinator
from tests.unit.client.toy_server import ToyCluster
from tests.unit.spark.test_stream_planning import ALL, options_of
from tests.waiting import wait_for


@pytest.fixture
def coordinator(cluster: ToyCluster) -> ToyCoordinator:
    return with_coordinator(cluster)


@pytest.fixture
def planner(cluster: ToyCluster) -> Iterator[StreamPlanner]:
    made = StreamPlanner(options_of(cluster, **{"kafka.group.id": "seen"}))
    yield made
    made.close()


def committed(coordinator: ToyCoordinator) -> list[int | None]:
    return coordinator.cluster.do(lambda: [coordinator.offset("seen", "orders", number) for number in (0, 1)])


def test_the_group_has_what_was_processed(coordinator: ToyCoordinator, planner: StreamPlanner) -> None:
    start = planner.initial()
    end = planner.latest(start, Limits(max_offsets=30))
    wait_for(lambda: committed(coordinator) == [0, 0], "the whole backlog is its lag")
    planner.latest(end, ALL)  # Spark requests this when the batch up to `end` is processed
    wait_for(lambda: committed(coordinator) == [20, 10], "the lag has shrunk")
    planner.processed(planner.latest(end, ALL))
    wait_for(lambda: committed(coordinator) == [100, 50], "no lag is left")


def test_a_query_that_ends_by_itself_ends_with_its_commit(coordinator: ToyCoordinator, planner: StreamPlanner) -> None:
    planner.fix_end()
    end = planner.latest(planner.initial(), ALL)
    assert planner.latest(end, ALL) == end
    assert committed(coordinator) == [100, 50]


def test_a_commit_that_fails_is_one_warning(
    cluster: ToyCluster, planner: StreamPlanner, caplog: pytest.LogCaptureFixture
) -> None:
    planner.fix_end()  # this cluster has no coordinator
    end = planner.initial()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            end = planner.latest(end, Limits(max_offsets=10))
        planner.latest(planner.latest(end, ALL), ALL)
    assert caplog.text.count("were not committed to group 'seen'") == 1
