"""The ends of a subscription: commits under way are waited for, the right listener is called, once."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from raylog.base.errors import ConcurrentUse
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer, Consumer
from tests.unit.client.consumer_support import fill, numbers, read, with_coordinator
from tests.unit.client.toy_coordinator import ToyCoordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

HERE = TopicPartition("t", 0)


@pytest.fixture
def coordinator(cluster: ToyCluster) -> ToyCoordinator:
    found = with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 20))
    return found


def options_of(coordinator: ToyCoordinator, **options: Any) -> dict[str, Any]:
    given = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    return {**coordinator.cluster.options, **given, **options}


@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_commits_under_way_are_stored_and_reported(coordinator: ToyCoordinator, way: str) -> None:
    reported: list[tuple[int, object]] = []
    with Consumer("t", **options_of(coordinator)) as consumer:
        read(consumer, 20)
        for offset in (5, 9, 13, 17):
            consumer.commit_async({HERE: offset}, lambda given, error: reported.append((given[HERE].offset, error)))
        getattr(consumer, way)()
        assert reported == [(5, None), (9, None), (13, None), (17, None)]
    with Consumer(**options_of(coordinator)) as after:
        assert after.committed(HERE) == 17


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_the_listener_learns_of_the_end_once(coordinator: ToyCoordinator, protocol: str, way: str) -> None:
    calls: list[tuple[str, list[TopicPartition]]] = []
    with Consumer(**options_of(coordinator, group_protocol=protocol)) as consumer:
        consumer.subscribe(
            ["t"],
            on_revoked=lambda given: calls.append(("revoked", given)),
            on_lost=lambda given: calls.append(("lost", given)),
        )
        read(consumer, 20)
        getattr(consumer, way)()
        assert calls == [("revoked", [HERE])]
    assert calls == [("revoked", [HERE])]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_a_member_that_was_removed_has_lost_its_partitions(
    coordinator: ToyCoordinator, protocol: str, way: str
) -> None:
    calls: list[str] = []
    given = {"group_protocol": protocol, "max_poll_interval_ms": 200, "session_timeout_ms": 1_000}
    with Consumer(**options_of(coordinator, heartbeat_interval_ms=50, **given)) as consumer:
        consumer.subscribe(["t"], on_revoked=lambda _: consumer.commit(), on_lost=lambda _: calls.append("lost"))
        read(consumer, 20)
        group = consumer._engine.group
        assert group is not None
        wait_for(lambda: not group.membership.is_stable, "the silent member leaves")
        getattr(consumer, way)()
        assert calls == ["lost"]


def test_a_seek_from_another_thread_is_refused_while_one_polls(coordinator: ToyCoordinator) -> None:
    refused: list[BaseException] = []
    with Consumer("t", **options_of(coordinator)) as consumer:
        read(consumer, 20)
        polling = threading.Thread(target=consumer.poll, args=(1_000,))
        polling.start()
        wait_for(lambda: not hasattr(consumer._one_poll, "free"), "it polls")
        seeks: list[Callable[[], None]] = [
            lambda: consumer.seek(HERE, 3),
            consumer.seek_to_beginning,
            consumer.seek_to_end,
        ]
        for seek in seeks:
            try:
                seek()
            except ConcurrentUse as error:
                refused.append(error)
        polling.join(10)
        assert len(refused) == 3
        consumer.seek(HERE, 3)
        assert read(consumer, 1)[0].offset == 3


async def test_a_second_task_is_refused_while_one_polls(coordinator: ToyCoordinator) -> None:
    async with AsyncConsumer("t", **options_of(coordinator)) as consumer:
        first = asyncio.ensure_future(consumer.getmany(timeout_ms=5_000))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentUse, match="one task at a time"):
            await consumer.getone()
        assert await first
        waiting = asyncio.ensure_future(consumer.getmany(timeout_ms=5_000))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await consumer.getmany(timeout_ms=10) == {}
