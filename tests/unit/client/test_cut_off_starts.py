"""A start that is cut off, by its caller's end or by an error behind the first connection: nothing is left open."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.half_messages.producer import AsyncHalfMessageProducer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from raylog.rpc import Connection
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import eventually

CLIENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "producer": lambda options: AsyncProducer(**options),
    "consumer": lambda options: AsyncConsumer("t", **options, group_id="g"),
    "queue": lambda options: AsyncQueueConsumer("t", **options, group_id="g"),
    "admin": lambda options: AsyncAdmin(**options),
    "half": lambda options: AsyncHalfMessageProducer("g", None, **options),
}


@pytest.mark.parametrize("name", list(CLIENTS))
async def test_a_start_that_is_cut_off_closes_its_connections(
    cluster: ToyCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    opened: list[Connection] = []
    answer = Connection.call

    async def silent(connection: Connection, *request: Any, **options: Any) -> Any:
        """No request is answered in time."""
        opened.append(connection)
        await asyncio.sleep(60)
        return await answer(connection, *request, **options)

    monkeypatch.setattr(Connection, "call", silent)
    client = CLIENTS[name](cluster.options)
    start = asyncio.create_task(client.start())
    await eventually(lambda: bool(opened))
    start.cancel()
    await asyncio.wait([start], timeout=10)
    assert start.cancelled()
    await eventually(lambda: all(connection.is_closed for connection in opened))
