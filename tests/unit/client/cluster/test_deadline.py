"""A call of several requests gives each the time that is left."""

import asyncio
from typing import Any

import pytest

from raylog.base.errors import UnknownTopicOrPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.cluster import deadline
from raylog.client.cluster.connections import call
from raylog.client.cluster.deadline import LAST_REQUEST_S, Deadline
from raylog.client.cluster.metadata import TopicInfo
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.rpc import Connection
from tests.unit.client.toy_server import ToyCluster


def test_the_last_request_has_time_to_fail_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(deadline, "now_s", lambda: clock[0])
    end = Deadline(5.0)
    assert (end.left_s, end.is_over) == (5.0, False)
    clock[0] += 3
    assert (end.left_s, end.is_over) == (2.0, False)
    clock[0] += 7
    assert (end.left_s, end.is_over) == (LAST_REQUEST_S, True)


async def test_looking_for_the_nearest_topic_gets_what_the_deletion_left(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, given = [100.0], []
    monkeypatch.setattr(deadline, "now_s", lambda: clock[0])
    async with AsyncAdmin(**cluster.options) as admin:

        async def refuse(*_: object, **__: object) -> None:
            clock[0] += 9
            raise UnknownTopicOrPartition("unknown", topic="t")

        async def refresh(_: object, *, timeout_s: float) -> None:
            given.append(timeout_s)

        monkeypatch.setattr(admin.cluster, "call_broker", refuse)
        monkeypatch.setattr(admin.cluster, "refresh", refresh)
        with pytest.raises(UnknownTopicOrPartition):
            await admin.delete_topic("t", timeout_s=10)
    assert given == [1.0]


async def test_two_brokers_that_hang_delay_a_new_topic_as_long_as_one(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = asyncio.Barrier(2)

    async def hang_together(connection: Connection, *args: Any, timeout_s: float) -> Any:
        assert timeout_s <= 5
        await both.wait()
        return await call(connection, *args, timeout_s=timeout_s)

    monkeypatch.setattr("raylog.client.admin.admin.call", hang_together)
    async with AsyncAdmin(**cluster.options) as admin, asyncio.timeout(30):
        await admin.create_topic("t", timeout_s=20)


async def test_looking_for_a_grown_topic_ends_with_max_block_ms(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    clock, given = [100.0], []
    monkeypatch.setattr(deadline, "now_s", lambda: clock[0])
    async with AsyncProducer(**cluster.options, max_block_ms=10_000) as producer:
        await producer.partitions_for("t")

        async def refresh(_: object, *, timeout_s: float) -> None:
            given.append(timeout_s)
            clock[0] += 9

        known = producer._engine.cluster.topic

        async def topic(name: str, *, timeout_s: float, may_create: bool) -> TopicInfo:
            given.append(timeout_s)
            return await known(name, timeout_s=timeout_s)

        monkeypatch.setattr(producer._engine.cluster, "refresh", refresh)
        monkeypatch.setattr(producer._engine.cluster, "topic", topic)
        with pytest.raises(UnknownTopicOrPartition):
            await (await producer.send("t", b"x", partition=3))
    assert given[:3] == [10.0, 10.0, 1.0]
    assert max(given[3:]) <= 1.0
