"""Probes of endpoints: one that refuses is dead; one that listens or times out is not."""

import asyncio

from raylog.actors.controller.liveness_probe import Endpoint, LivenessProbe
from tests.waiting import free_port

LOCAL = "127.0.0.1"


async def reported_dead(awaited: dict[Endpoint, str], alive: set[str] | None = None) -> frozenset[Endpoint]:
    """Return the first report of the probe."""
    report: asyncio.Future[frozenset[Endpoint]] = asyncio.get_running_loop().create_future()

    def on_dead(endpoints: frozenset[Endpoint]) -> None:
        if not report.done():
            report.set_result(endpoints)

    async def nodes_alive() -> set[str]:
        if alive is None:
            raise RuntimeError("Ray does not answer")
        return alive

    probe = LivenessProbe(lambda: None if report.done() else awaited, on_dead, nodes_alive=nodes_alive)
    probe.start()
    try:
        async with asyncio.timeout(10):
            return await report
    finally:
        await probe.stop()


async def test_an_address_that_refuses_is_given_up_and_one_that_answers_is_not() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), LOCAL, 0)
    async with server:
        there: Endpoint = (LOCAL, server.sockets[0].getsockname()[1])
        closed: Endpoint = (LOCAL, free_port())
        assert await reported_dead({there: "n1", closed: "n1"}, {"n1"}) == {closed}
        assert await reported_dead({there: "n1", closed: "n1"}) == {closed}


async def test_an_endpoint_on_a_dead_node_is_given_up_without_a_probe() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), LOCAL, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await reported_dead({(LOCAL, port): "dead", ("localhost", port): "n1"}, {"n1"}) == {(LOCAL, port)}


async def test_the_probe_ends_when_no_replica_is_awaited_any_more() -> None:
    probe = LivenessProbe(lambda: None, lambda _: None)
    probe.start()
    async with asyncio.timeout(5):
        assert probe._task is not None
        await probe._task
    await probe.stop()
