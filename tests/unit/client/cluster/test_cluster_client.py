"""Calls that find their way to brokers and leaders."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from raylog.base.errors import (
    AuthenticationFailed,
    ClientClosed,
    ConnectionFailed,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from raylog.base.ids import LATEST
from raylog.client.cluster import cluster_client
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import AdminConfig, load
from raylog.protocol.broker import INIT_PRODUCER_ID, InitProducerIdReply, InitProducerIdRequest
from raylog.protocol.groups import HEARTBEAT, HeartbeatRequest
from raylog.protocol.replica import FETCH, FetchRequest, ListOffsetsReply
from tests.unit.client.cut_off import unborn
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import eventually, free_port


@asynccontextmanager
async def client_of(cluster: ToyCluster, **options: Any) -> AsyncIterator[ClusterClient]:
    client = ClusterClient(load(AdminConfig, None, cluster.options | options))
    await client.start(5)
    try:
        yield client
    finally:
        await client.close()


async def test_a_leader_is_found_and_answers(cluster: ToyCluster) -> None:
    cluster.create_topic("a", partitions=2)
    async with client_of(cluster) as client:
        assert await client.list_offset(("a", 1), LATEST, timeout_s=5) == ListOffsetsReply(0, -1, 0)


async def test_a_call_follows_a_leader_that_moves(cluster: ToyCluster) -> None:
    cluster.create_topic("a")
    async with client_of(cluster) as client:
        await client.list_offset(("a", 0), LATEST, timeout_s=5)
        await asyncio.to_thread(cluster.move_leader, "a", 0, silently=True)
        assert (await client.list_offset(("a", 0), LATEST, timeout_s=5)).leader_epoch == 1


async def test_a_call_survives_cut_connections(cluster: ToyCluster) -> None:
    cluster.create_topic("a")
    async with client_of(cluster) as client:
        for _ in range(3):
            await client.list_offset(("a", 0), LATEST, timeout_s=5)
            await asyncio.to_thread(cluster.cut_connections)
        reply = await client.call_broker(INIT_PRODUCER_ID, InitProducerIdRequest(), timeout_s=5)
        assert reply == InitProducerIdReply(1, 0)


async def test_another_broker_answers_when_one_has_stopped(cluster: ToyCluster) -> None:
    cluster.create_topic("a")
    async with client_of(cluster) as client:
        await asyncio.to_thread(cluster.stop_broker, 0)
        assert (await client.topic("a", timeout_s=5)).name == "a"


async def test_a_broker_that_went_silent_does_not_hold_up_metadata(cluster: ToyCluster) -> None:
    cluster.create_topic("a")
    async with client_of(cluster) as client:
        cluster.silent_brokers.add(0)
        began_s = time.monotonic()
        while not cluster.unanswered:  # whichever broker comes first
            await client.refresh(("a",), timeout_s=20)
        assert (time.monotonic() - began_s) < 10


def test_each_search_for_a_leader_queries_another_broker(cluster: ToyCluster) -> None:
    cluster.create_topic("a")

    async def scenario() -> None:
        async with client_of(cluster) as client:
            cluster.informants.clear()
            for _ in range(4):
                await client.look_for_leader("a")

    asyncio.run(scenario())
    first, second, third, fourth = cluster.informants
    assert first is third is not second
    assert second is fourth


async def test_an_error_that_no_repetition_heals_is_raised_at_once(cluster: ToyCluster) -> None:
    def behind(topic_id: str, partition: int, epoch: int) -> FetchRequest:
        return FetchRequest(topic_id, partition, epoch, 99, 1, 1, 0, 0)

    cluster.create_topic("a")
    async with client_of(cluster) as client:
        with pytest.raises(OffsetOutOfRange) as caught:
            await client.call_leader("a", 0, FETCH, behind, timeout_s=5)
        assert caught.value.details == {"start": 0, "end": 0}


async def test_an_unknown_topic_names_the_nearest(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    async with client_of(cluster) as client:
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
            await client.topic("flihgts", timeout_s=1)


async def test_a_topic_created_a_moment_later_is_found(cluster: ToyCluster) -> None:
    async with client_of(cluster) as client:
        found = asyncio.ensure_future(client.topic("late", timeout_s=5))
        await client.refresh(("late",), timeout_s=5)
        await asyncio.to_thread(cluster.create_topic, "late")
        assert (await found).name == "late"


def test_concurrent_refreshes_make_one_request(cluster: ToyCluster) -> None:
    cluster.create_topic("a")

    async def scenario() -> None:
        async with client_of(cluster) as client:
            cluster.requests_seen.clear()
            await asyncio.gather(*(client.refresh(("a",), timeout_s=5) for _ in range(50)))

    asyncio.run(scenario())
    assert cluster.requests_seen.count("metadata") == 1


async def test_a_fetch_of_metadata_that_something_else_cancels_is_begun_again(cluster: ToyCluster) -> None:
    cluster.create_topic("a")
    with unborn("ClusterClient._fetch_metadata") as cut:
        async with client_of(cluster) as client:  # else it would say that no broker answers
            assert cut
            with unborn("ClusterClient._fetch_metadata") as again:
                found = await asyncio.gather(*(client.topic("a", timeout_s=5) for _ in range(2)))
            assert again
            assert [info.name for info in found] == ["a", "a"]


def test_the_group_coordinator_is_looked_up_once(cluster: ToyCluster) -> None:
    cluster.extra_methods["heartbeat"] = lambda request: request.reply([])

    async def scenario() -> None:
        async with client_of(cluster) as client:
            for _ in range(3):
                await client.call_coordinator("g", HEARTBEAT, HeartbeatRequest("g", 1, "m", None), timeout_s=5)

    asyncio.run(scenario())
    assert cluster.requests_seen.count("find_coordinator") == 1


async def test_a_wrong_secret_is_refused_at_once(cluster: ToyCluster) -> None:
    client = ClusterClient(load(AdminConfig, None, cluster.options | {"secret": b"a wrong secret that is"}))
    with pytest.raises(AuthenticationFailed):
        await client.start(5)
    await client.close()


async def test_an_unreachable_cluster_is_an_error_within_the_deadline(cluster: ToyCluster) -> None:
    client = ClusterClient(load(AdminConfig, None, {"bootstrap": "127.0.0.1:1", "secret": b"x" * 16}))
    with pytest.raises(ConnectionFailed):
        await client.start(0.2)
    await client.close()
    with pytest.raises(ClientClosed):
        await client.refresh((), timeout_s=1)


async def test_more_topics_than_a_request_names_take_several_requests(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcde":
        cluster.create_topic(name)
    monkeypatch.setattr(cluster_client, "NAMES_MAX", 2)
    async with client_of(cluster) as client:
        await client.refresh("abcde", timeout_s=5)
        assert {name for name in "abcde" if client.metadata.topic(name) is not None} == set("abcde")


async def test_callers_of_one_fetch_of_metadata_keep_their_own_deadlines(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(cluster) as client:
        called = client.call_broker
        first = True

        async def slow_once(*args: Any, timeout_s: float, **options: Any) -> Any:
            nonlocal first
            if first:
                first = False
                await asyncio.sleep(timeout_s)
                raise ConnectionFailed("no broker in the time of the first caller")
            return await called(*args, timeout_s=timeout_s, **options)

        monkeypatch.setattr(client, "call_broker", slow_once)
        short = asyncio.ensure_future(client.refresh((), timeout_s=0.2))
        await asyncio.sleep(0)
        await client.refresh((), timeout_s=10)
        with pytest.raises(ConnectionFailed):
            await short


async def test_a_broker_that_comes_back_elsewhere_is_found_without_a_call(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(cluster) as client:
        await client.refresh((), timeout_s=5)
        before, fetches = next(iter(client.metadata.brokers.values())), 0
        called = client.call_broker

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal fetches
            fetches += 1
            return await called(*args, **options)

        monkeypatch.setattr(client, "call_broker", counted)
        client.metadata.brokers[99] = replace(before, broker=99, port=free_port())  # it was restarted since
        await asyncio.to_thread(cluster.cut_connections)
        await eventually(lambda: 99 not in client.metadata.brokers and fetches > 0, 5, "fresh metadata")
