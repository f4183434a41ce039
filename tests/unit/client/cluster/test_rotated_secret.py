"""A secret is changed while clients run: with a file they go on, whenever it is replaced, and trust no others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import AuthenticationFailed, RetriableError
from raylog.client.admin.admin import Admin, AsyncAdmin
from raylog.client.cluster import cluster_client
from raylog.client.cluster.discovery import ClusterAddress
from raylog.client.consumer.asynchronous import AsyncConsumer
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.client.producer.producer import Producer
from raylog.rpc import Grant, TopicGrant, connection, mint
from raylog.rpc.auth.secret_files import CLIENT_FILE, SecretFiles, make_secrets, read_values, write_values
from raylog.rpc.auth.token_text import token_text
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from raylog.rpc.occasional import OccasionalWarning
from tests.unit.client.consumer_support import read, with_coordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

SECRETS = (b"\x11" * 32, b"\x22" * 32, b"\x33" * 32)
DEADLINE_S = 20.0


class Rotation:
    """A cluster whose clients' secret changes, and the file of its clients."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.brokers, self._copy, self._kind = folder / "cluster" / CLIENT_FILE, folder / "copy", kind
        make_secrets(self.brokers.parent)
        write_values(self.brokers, SECRETS[:1])
        self.cluster = ToyCluster(brokers=2, secret=SecretFiles(self.brokers.parent))
        self._grant = Grant(2**33)

    def serve(self) -> None:
        """Have a topic and a coordinator."""
        topic_id = self.cluster.create_topic("t", 2)
        self._grant = Grant(2**33, (TopicGrant(topic_id, "t", ALL_PARTITIONS, writes=True),), group="board")
        with_coordinator(self.cluster)

    @property
    def options(self) -> dict[str, Any]:
        """Of clients that are given the file."""
        return {"bootstrap": self.cluster.bootstrap, f"{self._kind}_file": self._copy, "request_timeout_ms": 10_000}

    def change(self) -> None:
        write_values(self.brokers, [SECRETS[1], *read_values(self.brokers)])

    def finish(self) -> None:
        """Remove the old value. Every connection of before ends, as brokers restart at some time."""
        write_values(self.brokers, read_values(self.brokers)[:1])
        self.cluster.cut_connections()

    def give(self, secret: bytes, expires_s: int = 2**33) -> None:
        """Replace the clients' file."""
        token = token_text(mint(secret, replace(self._grant, expires_s=expires_s)))
        text = secret.hex() if self._kind == "secret" else token
        fresh = self._copy.with_name("fresh")
        fresh.write_text(text + "\n")
        fresh.replace(self._copy)


@contextmanager
def rotation(folder: Path, kind: str) -> Iterator[Rotation]:
    found = Rotation(folder, kind)
    with found.cluster:
        found.serve()
        found.give(SECRETS[0])
        yield found


KINDS = pytest.mark.parametrize("kind", ["secret", "token"])


@KINDS
def test_clients_go_on_when_a_secret_is_changed(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with rotation(tmp_path, kind) as one, ExitStack() as stack:
        producer = stack.enter_context(Producer(**one.options))
        consumer = stack.enter_context(Consumer("t", group_id="board", auto_offset_reset="earliest", **one.options))
        admin = stack.enter_context(Admin(**one.options))
        steps = [lambda: None, one.change, one.cluster.cut_connections, lambda: one.give(SECRETS[1]), one.finish]
        for number, step in enumerate(steps):
            step()
            producer.send("t", b"%d" % number).result(DEADLINE_S)
            assert [record.value for record in read(consumer, 1)] == [b"%d" % number]
            consumer.commit()
            assert len(admin.describe_topic("t").partitions) == 2
        assert len(caplog.messages) == 3, caplog.messages
        assert all("has changed: new connections prove" in line for line in caplog.messages)


@KINDS
async def test_clients_of_asyncio_go_on_as_well(tmp_path: Path, kind: str) -> None:
    with rotation(tmp_path, kind) as one:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(AsyncProducer(**one.options))
            options = {"group_id": "board", "auto_offset_reset": "earliest", **one.options}
            consumer = await stack.enter_async_context(AsyncConsumer("t", **options))
            admin = await stack.enter_async_context(AsyncAdmin(**one.options))
            steps = [lambda: None, one.change, lambda: one.give(SECRETS[1]), one.finish]
            for number, step in enumerate(steps):
                await asyncio.to_thread(step)
                async with asyncio.timeout(DEADLINE_S):
                    await (await producer.send("t", b"%d" % number))
                    found: list[Any] = []
                    while not found:
                        found = [each for rows in (await consumer.getmany(timeout_ms=100)).values() for each in rows]
                assert [record.value for record in found] == [b"%d" % number]
                await consumer.commit()
                assert len((await admin.describe_topic("t")).partitions) == 2


@KINDS
def test_a_file_that_comes_after_the_end_of_the_old_secret_is_waited_for(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rotation(tmp_path, kind) as one, ExitStack() as stack:
        producer = stack.enter_context(Producer(**one.options))
        consumer = stack.enter_context(Consumer("t", group_id="board", auto_offset_reset="earliest", **one.options))
        admin = stack.enter_context(Admin(**one.options))
        producer.send("t", b"before").result(DEADLINE_S)
        assert len(read(consumer, 1)) == 1
        one.change()
        one.finish()
        late = producer.send("t", b"late")
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:
            assert consumer.poll(100) == {}, "no error reaches a service that can only wait"
        assert not late.done()
        with pytest.raises(RetriableError, match=f"The server refused our {kind}"):
            admin.describe_topic("t", timeout_s=0.5)
        one.give(SECRETS[1])
        late.result(DEADLINE_S)
        assert [record.value for record in read(consumer, 1)] == [b"late"]
        assert len(admin.describe_topic("t").partitions) == 2
    assert sum("has changed" in line for line in caplog.messages) == 3


async def test_a_client_inside_ray_gets_the_new_secret_from_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rotation(tmp_path, "secret") as one:
        endpoints = tuple((broker.host, broker.port) for broker in one.cluster.brokers.values())
        lookups = 0

        async def through_ray(*_: object, **__: object) -> ClusterAddress:
            nonlocal lookups
            lookups += 1
            return ClusterAddress(read_values(one.brokers)[0], endpoints, through_ray=True)

        monkeypatch.setattr(cluster_client, "find_cluster", through_ray)
        async with AsyncAdmin() as admin:
            await asyncio.to_thread(one.change)
            await asyncio.to_thread(one.finish)
            assert len((await admin.describe_topic("t")).partitions) == 2
            assert len((await admin.describe_topic("t")).partitions) == 2
        assert lookups == 2, "once at the start, once when it was refused"
    assert sum("has got the clients' new secret through Ray" in line for line in caplog.messages) == 1


async def test_a_client_inside_ray_reaches_nodes_without_the_new_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller's node has it first; the others get it by `raylog start`, which comes a little later."""
    with rotation(tmp_path, "secret") as one:
        endpoints = tuple((broker.host, broker.port) for broker in one.cluster.brokers.values())

        async def through_ray(*_: object, **__: object) -> ClusterAddress:
            return ClusterAddress(SECRETS[1], endpoints, through_ray=True, replaced=SECRETS[0])

        monkeypatch.setattr(cluster_client, "find_cluster", through_ray)
        async with AsyncAdmin() as admin:
            assert len((await admin.describe_topic("t")).partitions) == 2
            for step in (one.change, one.finish):
                await asyncio.to_thread(step)
                await asyncio.to_thread(one.cluster.cut_connections)
                assert len((await admin.describe_topic("t")).partitions) == 2


async def test_tokens_of_a_client_inside_ray_are_of_the_secret_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "PROVED_S", 0.0)
    with rotation(tmp_path, "secret") as one:
        endpoints = tuple((broker.host, broker.port) for broker in one.cluster.brokers.values())

        async def through_ray(*_: object, **__: object) -> ClusterAddress:
            return ClusterAddress(read_values(one.brokers)[0], endpoints, through_ray=True)

        monkeypatch.setattr(cluster_client, "find_cluster", through_ray)
        async with AsyncAdmin() as maker:
            await asyncio.to_thread(one.change)
            await asyncio.to_thread(write_values, one.brokers, read_values(one.brokers)[:1])
            token = await maker.create_token(read=["t"])
        monkeypatch.undo()
        async with AsyncAdmin(bootstrap=one.cluster.bootstrap, token=token) as admin:
            assert len((await admin.describe_topic("t")).partitions) == 2


def test_a_secret_in_the_arguments_cannot_become_another(tmp_path: Path) -> None:
    with rotation(tmp_path, "secret") as one:
        options: dict[str, Any] = {"bootstrap": one.cluster.bootstrap, "secret": SECRETS[0]}
        with Admin(**options) as admin:
            one.change()
            one.cluster.cut_connections()
            assert len(admin.describe_topic("t").partitions) == 2, "both are accepted until then"
            one.finish()
            with pytest.raises(AuthenticationFailed, match="and the new one if it was changed there"):
                admin.describe_topic("t")


@KINDS
def test_a_leader_may_refuse_while_brokers_stay_connected(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_malformed", OccasionalWarning(connection.logger))
    with rotation(tmp_path, kind) as one, Producer(**one.options) as producer:
        producer.send("t", b"before", partition=0).result(DEADLINE_S)
        one.change()
        write_values(one.brokers, read_values(one.brokers)[:1])
        one.cluster.move_leader("t", 0)
        late = producer.send("t", b"late", partition=0)
        wait_for(lambda: f"The server refused our {kind}" in caplog.text, "the refusal is in the log")
        one.give(SECRETS[1])
        late.result(DEADLINE_S)
    assert sum("has changed" in line for line in caplog.messages) == 1


def test_a_token_that_ends_is_replaced_by_the_one_in_the_file(tmp_path: Path) -> None:
    with rotation(tmp_path, "token") as one:
        end_s = int(time.time()) + 3
        one.give(SECRETS[0], expires_s=end_s)
        with (
            Producer(**one.options) as producer,
            Consumer("t", auto_offset_reset="earliest", **one.options) as consumer,
        ):
            number = 0
            while time.time() < end_s + 1:
                producer.send("t", b"%d" % number, partition=0).result(DEADLINE_S)
                assert [record.value for record in read(consumer, 1)] == [b"%d" % number]
                number += 1
                if number == 1:
                    one.give(SECRETS[0])


def test_a_cluster_of_others_at_all_addresses_is_never_trusted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with rotation(tmp_path, "secret") as one:
            ports = [broker.port for broker in one.cluster.brokers.values()]
            admin = Admin(**one.options, client_id="careful")
            admin.describe_topic("t")
        others = []
        for port in ports:
            other = ToyCluster(secret=SECRETS[2])
            other.first_port = port
            threading.Thread(target=stack.enter_context, args=(other,)).start()
            others.append(other)
        wait_for(lambda: all(other.brokers for other in others), "others listen there")
        try:
            with pytest.raises(RetriableError, match="The server refused our secret"):
                admin.describe_topic("t", timeout_s=1.0)
            assert not [method for other in others for method in other.requests_seen]
        finally:
            admin.close()
