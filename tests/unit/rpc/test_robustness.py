"""Peers that misbehave: each is dropped or held back, and the server continues to serve others."""

import asyncio
import gc
import random
import socket
import struct

import pytest

from raylog.base.errors import AuthenticationFailed, ConnectionFailed, RequestTimedOut
from raylog.rpc import Connection, Request, RpcServer, connect
from raylog.rpc.framing import REQUEST, encode_header
from tests.coroutines import run
from tests.unit.rpc.support import (
    SECRET,
    is_cut,
    leave,
    limits,
    raw_member,
    serving,
    stranger,
    until,
    until_full,
)


@pytest.mark.parametrize("seed", range(20))
async def test_random_bytes_instead_of_a_handshake_close_that_connection_only(seed: int) -> None:
    async with serving() as place:
        async with stranger(place) as (reader, writer):
            writer.write(random.Random(seed).randbytes(2000))
            assert await is_cut(reader)
        assert not place.echo.seen
        await place.still_serves()


@pytest.mark.parametrize("seed", range(20))
async def test_random_bytes_after_the_handshake_close_that_connection_only(seed: int) -> None:
    async with serving(limits=limits(max_frame_bytes=100_000)) as place:
        async with raw_member(place) as (reader, writer):
            noise = random.Random(seed)
            for _ in range(50):  # each a sound pair of lengths with a random header, so that msgpack sees them too
                body = noise.randbytes(noise.randrange(1, 60))
                writer.write(struct.pack(">II", 4 + len(body), noise.randrange(len(body) + 1)) + body)
            writer.write(b"\xff" * 8)
            assert await is_cut(reader)
        await place.still_serves()


async def test_an_oversized_frame_is_refused_before_it_is_sent_in_full() -> None:
    async with serving(limits=limits(max_frame_bytes=100_000)) as place:
        async with raw_member(place) as (reader, writer):
            writer.write(struct.pack(">II", 100_001, 20))
            assert await is_cut(reader)
        await place.still_serves()


@pytest.mark.parametrize("kept_bytes", [3, 8, 20, 50_000, 199_999])
async def test_a_frame_cut_short_by_the_end_of_the_stream_is_not_handled(kept_bytes: int) -> None:
    async with serving() as place:
        frame = encode_header(REQUEST, 1, "size", [], 200_000) + bytes(200_000)
        async with raw_member(place) as (reader, writer):
            writer.write(frame[:kept_bytes])
            writer.write_eof()
            assert await is_cut(reader)
        assert not place.echo.seen
        await until(lambda: not place.server.connections, "the connection is forgotten")
        await place.still_serves()


async def test_requests_without_authentication_are_not_handled() -> None:
    async with serving() as place:
        async with stranger(place) as (reader, writer):
            writer.write(encode_header(REQUEST, 1, "echo", [], 0) * 20)
            assert await is_cut(reader)
        assert not place.echo.seen
        assert not place.server.connections


async def test_a_client_with_the_wrong_secret_gets_the_reason() -> None:
    async with serving() as place:
        with pytest.raises(AuthenticationFailed, match="refused our secret"):
            await place.connect(secret=b"another cluster's")
        await place.still_serves()


async def test_a_server_that_does_not_know_the_secret_is_not_believed() -> None:
    closed = asyncio.Event()

    async def accept_any(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"RAYLOG\x02" + bytes(32) + b"\x00\x01\x02")
        await reader.readexactly(65)
        writer.write(b"\x01\x00\x04\x03\x00\x01\x00" + bytes(32))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(accept_any, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AuthenticationFailed, match="do not trust"):
            await connect("127.0.0.1", port, secret=SECRET)
        await closed.wait()


@pytest.mark.parametrize("sent_bytes", [0, 1, 64])
async def test_a_peer_that_is_slow_to_authenticate_is_dropped(sent_bytes: int) -> None:
    async with serving(limits=limits(auth_timeout_s=0.2)) as place, stranger(place) as (reader, writer):
        await reader.readexactly(39)
        writer.write(b"\x01" * sent_bytes)
        await place.still_serves()
        assert await is_cut(reader)


async def test_connecting_to_a_silent_or_absent_listener_fails_in_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionFailed, match=str(port)):
            await connect("127.0.0.1", port, secret=SECRET)
        listener.listen()
        with pytest.raises(ConnectionFailed, match=r"within 0\.2 seconds"):
            await connect("127.0.0.1", port, secret=SECRET, timeout_s=0.2)


async def test_a_reset_in_the_middle_of_calls_is_noticed_by_both_ends() -> None:
    async with serving() as place:
        async with raw_member(place) as (_, writer):
            await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
            (accepted,) = place.server.connections
            waiting = accepted.call_nowait("anything", timeout_s=30)
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            with pytest.raises(ConnectionFailed):
                await waiting
        await until(lambda: not place.server.connections, "the connection is forgotten")
        await place.still_serves()


async def test_a_peer_that_vanishes_during_a_large_send_leaves_nothing_behind() -> None:
    async with serving() as place:
        for _ in range(5):
            async with raw_member(place) as (reader, writer):
                await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
                (accepted,) = place.server.connections
                accepted.notify("data", [], bytes(30_000_000))
                await reader.readexactly(100_000)
                writer.transport.abort()
                # Keeps writing into the broken socket, so that the write is what notices it.
                while not accepted.is_closed:
                    accepted.notify("data", [], bytes(200_000))
                    await asyncio.sleep(0)
            await until(lambda: not place.server.connections, "the connection is forgotten")
            await accepted.wait_closed()
            assert accepted.statistics()["unsent_bytes"] == 0
        await place.still_serves()


async def test_a_half_open_peer_costs_a_call_its_deadline_and_nothing_more() -> None:
    async with serving() as place, raw_member(place):  # it never answers, and never closes
        await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
        (accepted,) = place.server.connections
        with pytest.raises(RequestTimedOut):
            await accepted.call("anything", timeout_s=0.1)
        await place.still_serves()


async def test_a_vanished_peer_is_watched_for_by_the_kernel() -> None:
    async with serving() as place:
        connection = await place.connect(limits=limits(dead_peer_timeout_s=9))
        sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 3
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 9000
        await leave(connection)


async def test_a_peer_that_sends_without_end_and_takes_no_answers_is_held_back() -> None:
    async with (
        serving(limits=limits(send_high_water_bytes=100_000)) as place,
        raw_member(place) as (reader, writer),
    ):
        # Each requests 50 kB; padded, so that one receive buffer holds about a hundred of them.
        request = encode_header(REQUEST, 1, "blob", [50_000], 2000) + bytes(2000)
        writer.write(request * 2000)
        await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
        (accepted,) = place.server.connections
        await until_full(accepted)
        assert accepted._reading_paused
        handled = len(place.echo.seen)
        assert handled < 2000
        await place.still_serves()
        assert len(place.echo.seen) == handled + 1
        await reader.readexactly(2000 * 50_000)
        assert len(place.echo.seen) == 2001


async def test_a_server_stops_reading_while_too_many_requests_are_unanswered() -> None:
    async with serving(limits=limits(max_unanswered_requests=4)) as place:
        connection = await place.connect()
        first = [connection.call_nowait("keep", [n], timeout_s=15) for n in range(6)]
        await until(lambda: len(place.echo.kept) == 6, "the first six arrive together")
        later = [connection.call_nowait("keep", [n], timeout_s=15) for n in range(6, 8)]
        await place.still_serves()
        assert len(place.echo.kept) == 6
        for request in place.echo.kept[:4]:
            request.reply(request.args)
        await until(lambda: len(place.echo.kept) == 8, "the server reads on")
        for request in place.echo.kept[4:]:
            request.reply(request.args)
        assert [(await call).args for call in first + later] == [[n] for n in range(8)]
        await leave(connection)


async def test_a_server_stops_reading_above_its_unanswered_payload_bytes() -> None:
    async with serving(limits=limits(max_unanswered_bytes=2_000_000)) as place:
        connection = await place.connect()
        calls = [connection.call_nowait("keep", [n], bytes(1_000_000), timeout_s=15) for n in range(12)]
        (accepted,) = place.server.connections
        await until(lambda: accepted._reading_paused, "the server stops reading")
        assert accepted.statistics()["unanswered_bytes"] <= 4_000_000
        answered = 0
        while answered < 12:
            await until(lambda: bool(place.echo.kept), "more requests arrive")
            place.echo.kept.pop(0).reply()
            answered += 1
        await asyncio.gather(*calls)
        assert accepted.statistics()["unanswered_bytes"] == 0
        await leave(connection)


async def test_drain_waits_while_the_peer_takes_nothing() -> None:
    async with serving() as place, raw_member(place) as (reader, _):
        await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
        (accepted,) = place.server.connections
        await accepted.drain()
        for _ in range(5):
            accepted.notify("data", [], bytes(5_000_000))
        draining = asyncio.ensure_future(accepted.drain())
        await place.still_serves()
        assert not draining.done()
        await reader.readexactly(24_000_000)
        await draining
        assert accepted.statistics()["unsent_bytes"] < 5_000_000


async def test_closing_cuts_a_peer_that_takes_nothing_after_the_linger_time() -> None:
    async with serving(limits=limits(close_linger_s=0.2)) as place, raw_member(place):
        await until(lambda: len(place.server.connections) == 1, "the server takes note of the connection")
        (accepted,) = place.server.connections
        accepted.notify("data", [], bytes(50_000_000))
        draining = asyncio.ensure_future(accepted.drain())
        accepted.close()
        await accepted.wait_closed()
        await draining
        assert accepted.statistics()["unsent_bytes"] == 0


async def test_a_connection_over_the_limit_is_closed_at_once() -> None:
    async with serving(limits=limits(max_connections=2)) as place:
        first, second = await place.connect(), await place.connect()
        with pytest.raises(ConnectionFailed):
            await place.connect()
        await leave(first)
        await until(lambda: len(place.server.connections) == 1, "the server notices that one has left")
        await place.still_serves()
        await leave(second)


async def test_a_failing_on_connect_closes_that_connection_only() -> None:
    failures = [ValueError("planted")]

    def on_connect(_: Connection) -> None:
        if failures:
            raise failures.pop()

    async with serving(on_connect=on_connect) as place:
        connection = await place.connect()
        await until(lambda: connection.is_closed, "the server closes the connection")
        await place.still_serves()


async def test_a_closed_server_accepts_no_connection_and_can_be_closed_again() -> None:
    async with serving() as place:
        await place.server.close()
        await place.server.close()
        with pytest.raises(ConnectionFailed):
            await place.connect()
        with pytest.raises(RuntimeError, match="started already"):
            await place.server.start()


def test_a_server_without_secret_or_with_an_impossible_limit_is_refused() -> None:
    def handler(_: Request) -> None:
        raise AssertionError("never called")

    with pytest.raises(ValueError, match="secret is empty"):
        RpcServer(handler, secret=b"")
    with pytest.raises(ValueError, match="max_frame_bytes"):
        limits(max_frame_bytes=0)


@pytest.mark.parametrize("turns", range(6))
def test_a_closed_server_does_not_listen_after_a_cancelled_start(turns: int) -> None:
    """What it does not close is warned of when it is collected, and every warning fails the test."""

    async def scenario() -> None:
        server = RpcServer(lambda request: request.reply(None), secret=SECRET)
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await server.close()

    run(scenario())
    gc.collect()
