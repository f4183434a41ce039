"""The whole world: equal seeds are equal runs, and what its network and processes do to a connection."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.simulation.whole.loop.network import Network
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.loop.scheduler import Scheduler
from tests.simulation.whole.plan import WHOLE
from tests.simulation.whole.runs import NO_BUG, Worker, run_whole

pytestmark = pytest.mark.sim
SEED: Final = 6
"""Of a world in which a replica opens bodies in a pool of threads."""


def test_one_seed_is_the_same_run_in_two_processes() -> None:
    other = Worker()
    try:
        found = other.run(SEED, WHOLE, NO_BUG)
    finally:
        other.close()
    again = run_whole(SEED, WHOLE)
    assert again.violation is None, "\n".join(again.story)
    assert found["trace"] == again.trace
    assert (found["events"], found["story"]) == (again.events, again.story)


class Wire(asyncio.Protocol):
    """Records what arrives, and why the connection ended."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


class Two:
    """A server's and a client's process with one connection."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.network = Network(self.scheduler)
        self.server = SimProcess(self.scheduler, self.network, "server", "127.0.0.1")
        self.client = SimProcess(self.scheduler, self.network, "client", "127.0.0.2")
        self.far, self.near = Wire(), Wire()
        self.transport: asyncio.Transport | None = None
        self.server.call_soon(lambda: self.server.create_task(self._listen()))
        self.scheduler.run(101.0)
        self.client.call_soon(lambda: self.client.create_task(self._connect()))
        self.scheduler.run(102.0)

    async def _listen(self) -> None:
        server = await self.server.create_server(lambda: self.far, "127.0.0.1", 1000)
        await server.start_serving()

    async def _connect(self) -> None:
        self.transport, _ = await self.client.create_connection(lambda: self.near, "127.0.0.1", 1000)

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.client.call_soon(self.transport.write, data)


def test_a_blocked_link_holds_what_is_sent_until_it_heals() -> None:
    two = Two()
    two.network.block("127.0.0.2", "127.0.0.1")
    two.send(b"one")
    two.scheduler.run(110.0)
    assert two.far.data == b""
    two.network.heal("127.0.0.2", "127.0.0.1")
    two.send(b"two")
    two.scheduler.run(112.0)
    assert two.far.data == b"onetwo"


def test_a_link_that_stays_blocked_breaks_its_connections() -> None:
    two = Two()
    two.network.block("127.0.0.2", "127.0.0.1")
    two.scheduler.run(140.0)
    assert two.near.ended
    assert two.far.ended


def test_a_killed_process_runs_nothing_more_and_its_peer_learns_of_it() -> None:
    two = Two()
    ran: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5.0)
        finally:
            ran.append("finally")

    two.server.call_soon(lambda: two.server.create_task(work()))
    two.scheduler.run(103.0)
    two.server.kill()
    two.scheduler.run(120.0)
    assert not ran
    assert two.near.ended
    assert not two.far.ended


def test_a_paused_process_goes_on_where_it_was() -> None:
    two = Two()
    two.server.pause()
    two.send(b"waits")
    two.scheduler.run(110.0)
    assert two.far.data == b""
    two.server.resume()
    two.scheduler.run(111.0)
    assert two.far.data == b"waits"


def test_a_host_without_power_says_nothing_until_it_is_back() -> None:
    two = Two()
    two.network.power_off("127.0.0.1")
    two.server.kill()
    two.scheduler.run(110.0)
    assert not two.near.ended
    two.network.power_on("127.0.0.1")
    two.scheduler.run(120.0)
    assert two.near.ended


def test_a_connection_that_was_made_after_an_outage_stays() -> None:
    two = Two()
    two.network.power_off("127.0.0.3")
    two.network.power_on("127.0.0.3")
    third = SimProcess(two.scheduler, two.network, "third", "127.0.0.3")
    wire = Wire()

    async def connect() -> None:
        await third.create_connection(lambda: wire, "127.0.0.1", 1000)

    third.call_soon(lambda: third.create_task(connect()))
    two.scheduler.run(140.0)
    assert not wire.ended
    assert not two.far.ended
