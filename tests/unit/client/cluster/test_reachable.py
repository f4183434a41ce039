"""An address where nothing listens is reported soon, with what to check; a broker that restarts is waited for."""

from __future__ import annotations

import asyncio
import socket

import pytest

from raylog.base.errors import ConnectionFailed
from raylog.client.cluster import cluster_client, reachable
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.reachable import Reach, require_an_answer
from raylog.client.config import AdminConfig, load
from raylog.client.consumer.consumer import Consumer
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import free_port, wait_for


def test_a_wrong_address_is_one_sentence() -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed, match=rf"No broker answers at 127.0.0.1:{port}, for 0 seconds: check the add"):
        asyncio.run(require_an_answer([("127.0.0.1", port)], timeout_s=0.1))


def test_one_broker_of_several_is_enough_and_may_come_late() -> None:
    async def late() -> None:
        dead, port = free_port(), free_port()
        waiting = asyncio.create_task(require_an_answer([("127.0.0.1", dead), ("127.0.0.1", port)], timeout_s=20))
        await asyncio.sleep(0)
        async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port):
            await waiting

    asyncio.run(late())


def test_a_client_that_reaches_no_broker_warns_twice_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(reachable, "now_s", lambda: clock[0])
    reach = Reach("orders")
    for _ in range(130):
        reach.failed(("10.0.0.1", 7001), "No connection: Connection refused.")
        reach.failed(("10.0.0.2", 7002), "No connection: Connection refused.")
        clock[0] += 0.5
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    first = caplog.messages[0]
    assert "Client 'orders' has reached no broker for 5 seconds, at 10.0.0.1:7001, 10.0.0.2:7002 (No conn" in first
    assert "these are its addresses" in first
    reach.reached(("10.0.0.1", 7003))
    assert "has reached a broker again, at 10.0.0.1:7003, after 65 seconds" in caplog.messages[2]
    reach.failed(("10.0.0.1", 7003), "lost")
    assert len(caplog.records) == 3


def test_the_warning_names_brokers_and_no_replicas(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reachable, "now_s", lambda: 100.0)
    monkeypatch.setattr(reachable, "QUIET_S", 0.0)
    reach = Reach("orders", lambda: [("10.0.0.1", 18100)])
    for port in (44444, 18100):
        reach.failed(("10.0.0.1", port), "refused")
    assert [("44444" in line, "18100" in line) for line in caplog.messages] == [(True, False)]
    monkeypatch.setattr(reachable, "WARN_EVERY_S", 0.0)
    reach.failed(("10.0.0.1", 44444), "refused")
    assert "at 10.0.0.1:18100 (refused)" in caplog.messages[1]


def test_a_new_client_with_a_wrong_address_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(cluster_client, "ATTEMPT_TIMEOUT_S", 0.1)
    port = free_port()
    client = ClusterClient(load(AdminConfig, None, {"bootstrap": f"127.0.0.1:{port}", "secret": "c0ffee" * 8}))

    async def start() -> None:
        try:
            await client.start(60)
        finally:
            await client.close()

    with pytest.raises(ConnectionFailed, match=rf"No broker answers at 127.0.0.1:{port}, for 0 seconds: check the add"):
        asyncio.run(start())


def test_a_consumer_that_has_lost_its_cluster_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reachable, "QUIET_S", 0.2)
    with ToyCluster() as cluster:
        cluster.create_topic("t")
        consumer = Consumer("t", client_id="orders", **cluster.options)
        consumer.poll(100)
    try:
        wait_for(lambda: "Client 'orders' has reached no broker" in caplog.text, "the warning")
    finally:
        consumer.close(timeout=1)


def test_an_address_of_another_program_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(cluster_client, "METADATA_CONNECT_S", 0.2)

    async def start(port: int) -> None:
        client = ClusterClient(load(AdminConfig, None, {"bootstrap": f"127.0.0.1:{port}", "secret": "c0ffee" * 8}))
        try:
            await client.start(60)
        finally:
            await client.close()

    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ConnectionFailed, match="takes connections, and no broker of Raylog answers there"),
    ):
        asyncio.run(start(other.getsockname()[1]))
