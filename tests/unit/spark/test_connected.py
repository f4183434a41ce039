"""Plans of one process use one client for one cluster, as long as it answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raylog.base.errors import AuthenticationFailed, UnknownTopicOrPartition
from raylog.client import kept
from raylog.client.cluster import connections
from raylog.client.ranges.planning import KEPT, plan_read
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.client.runtime import shared
from tests.unit.client.toy_server import ToyCluster
from tests.unit.spark.support import fill, options, spans
from tests.waiting import wait_for

BOTH = [("orders", 0, 0, 100), ("orders", 1, 0, 50)]


@pytest.fixture(autouse=True)
def none_is_kept() -> Iterator[None]:
    """Neither before a test nor after it."""
    end_kept()
    yield
    end_kept()


def end_kept() -> None:
    shared().run(KEPT.close(), 5)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where connections were opened to."""
    found: list[Any] = []
    connect = connections.connect  # type: ignore[attr-defined]  # as that module sees it

    async def counting(host: str, port: int, *given: Any, **named: Any) -> Any:
        found.append((host, port))
        return await connect(host, port, *given, **named)

    monkeypatch.setattr(connections, "connect", counting)
    return found


def plan(cluster: ToyCluster, **given: object) -> list[PartitionRange]:
    return plan_read(options(cluster, **{"subscribe": "orders", **given}).wanted, keeps_client=True)


def test_the_second_plan_opens_no_connection(cluster: ToyCluster, opened: list[Any]) -> None:
    assert spans(plan(cluster)) == BOTH
    assert len(opened) >= 3  # a broker, and two leaders
    opened.clear()
    fill(cluster, "orders", 1, [7])
    assert spans(plan(cluster)) == [("orders", 0, 0, 100), ("orders", 1, 0, 57)]
    assert opened == []


def test_a_topic_that_was_created_again_is_planned_as_it_is_now(cluster: ToyCluster) -> None:
    [before, _] = plan(cluster)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 1)
    fill(cluster, "orders", 0, [3])
    [now] = plan(cluster)
    assert spans([now]) == [("orders", 0, 0, 3)]
    assert now.topic_id != before.topic_id
    cluster.delete_topic("orders")
    with pytest.raises(UnknownTopicOrPartition):
        plan(cluster)


def test_connections_that_were_cut_are_opened_again(cluster: ToyCluster) -> None:
    plan(cluster)
    cluster.cut_connections()
    assert spans(plan(cluster)) == BOTH


def test_a_leader_that_has_moved_is_found(cluster: ToyCluster) -> None:
    [_, before] = plan(cluster)
    cluster.move_leader("orders", 1)
    [_, now] = plan(cluster)
    assert now.leader != before.leader
    assert now.leader_epoch > before.leader_epoch


def test_a_client_with_other_credentials_is_not_used(cluster: ToyCluster) -> None:
    plan(cluster)
    with pytest.raises(AuthenticationFailed):
        plan(cluster, **{"raylog.secret": "00" * 16})
    assert spans(plan(cluster)) == BOTH


def test_a_plan_that_fails_keeps_nothing(cluster: ToyCluster) -> None:
    plan(cluster)
    with pytest.raises(UnknownTopicOrPartition):
        plan(cluster, subscribe="ordres")
    assert len(KEPT) == 0


def test_a_client_that_is_not_used_for_a_while_is_closed(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_S", 0.05)
    plan(cluster)
    wait_for(lambda: len(KEPT) == 0, "the client was closed", 10)
    assert spans(plan(cluster)) == BOTH
