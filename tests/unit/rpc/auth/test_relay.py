"""A relaying process between two real connections, and replayed recordings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from raylog.base.errors import AuthenticationFailed
from raylog.rpc import Credentials, Role, connect
from raylog.rpc.auth.addresses import ENV_ADVERTISED, Advertised, canonical
from raylog.rpc.auth.handshake import FEATURE_LEVEL, SOFTWARE
from tests.unit.rpc.support import SECRET, is_cut, leave, serving, stranger, until


@asynccontextmanager
async def relay(target: tuple[str, int], recording: bytearray | None = None) -> AsyncIterator[tuple[str, int]]:
    """Listen, and relay all bytes to `target` and back."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if kept is not None:
                    kept += data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*target)
        await asyncio.gather(pass_on(reader, back, recording), pass_on(there, writer, None))
        for end in (back, writer):
            with suppress(ConnectionError):
                await end.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[:2]


async def refused(host: str, port: int, **options: Any) -> str:
    with pytest.raises(AuthenticationFailed) as refusal:
        await connect(host, port, **{"secret": SECRET, **options})
    return str(refusal.value)


async def test_a_relayed_handshake_is_refused() -> None:
    async with serving() as place, relay((place.host, place.port)) as middle:
        error = await refused(*middle)
        assert f"{middle[0]}:{middle[1]} does not know this address for its own" in error
        assert not place.server.connections
        assert not place.echo.seen
        await place.still_serves()


async def test_a_relay_that_is_advertised_is_a_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as inner, relay((inner.host, inner.port)) as middle:
        monkeypatch.setenv(ENV_ADVERTISED, f"203.0.113.9, {middle[0]}:{middle[1]}")
        inner.server._advertised = Advertised.read()
        connection = await connect(*middle, secret=SECRET)
        assert (await connection.call("echo", ["through"], timeout_s=5)).args == ["through"]
        await leave(connection)


async def test_a_server_on_every_address_is_reached_by_each_of_its_names() -> None:
    async with serving(host="0.0.0.0") as place:
        for name in ("127.0.0.1", "localhost", "127.0.0.2", "0.0.0.0"):
            connection = await connect(name, place.port, secret=SECRET)
            assert (await connection.call("echo", [name], timeout_s=5)).args == [name]
            await leave(connection)


async def test_a_recorded_answer_is_no_use_on_another_connection() -> None:
    async with serving() as place:
        recording = bytearray()
        async with relay((place.host, place.port), recording) as middle:
            await refused(*middle)
        assert recording
        async with stranger(place) as (reader, writer):
            writer.write(bytes(recording))
            assert await is_cut(reader)
        assert not place.server.connections
        await place.still_serves()


async def test_both_ends_of_a_connection_know_role_feature_level_and_software() -> None:
    async with serving() as place:
        connection = await place.connect()
        await until(lambda: bool(place.server.connections), "the server takes note")
        (accepted,) = place.server.connections
        for end in (connection, accepted):
            known = (end.role, end.peer_feature_level, end.peer_software)
            assert known == (Role.CLUSTER, FEATURE_LEVEL, SOFTWARE)
        await leave(connection)


async def test_the_secret_is_read_again_for_each_connection() -> None:
    held = [Credentials.of_cluster([b"the first of them"])]
    async with serving(secret=lambda: held[0]) as place:
        first = await place.connect(secret=b"the first of them")
        held[0] = Credentials.of_cluster([b"the second of them", b"the first of them"])
        second = await place.connect(secret=b"the second of them")
        held[0] = Credentials.of_cluster([b"the second of them"])
        await refused(place.host, place.port, secret=b"the first of them")
        for standing in (first, second):
            assert (await standing.call("echo", [1], timeout_s=5)).args == [1]
            await leave(standing)


async def test_a_handshake_that_is_cut_short_anywhere_leaves_nothing_behind() -> None:
    async with serving() as place:
        recording = bytearray()
        async with relay((place.host, place.port), recording) as middle:
            await refused(*middle)
        for length in range(0, len(recording), 7):
            async with stranger(place) as (reader, writer):
                writer.write(recording[:length])
                writer.write_eof()
                assert await is_cut(reader)
        await until(lambda: not place.server._strangers, "all of them are forgotten")
        await place.still_serves()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("127.0.0.1", 1), "127.0.0.1:1"),
        (("::1", 2, 0, 0), "[::1]:2"),
        (("::ffff:10.0.0.1", 3, 0, 0), "10.0.0.1:3"),
        (("fe80::1%eth0", 4, 0, 2), "[fe80::1]:4"),
        ("/run/socket", ""),
        (None, ""),
    ],
)
def test_an_address_has_one_spelling(name: object, text: str) -> None:
    assert canonical(name) == text


def test_advertised_addresses_are_read_and_what_is_none_is_named() -> None:
    found = Advertised.read({ENV_ADVERTISED: "203.0.113.7, 203.0.113.8:9092,[2001:db8::1]:7, 2001:db8::2"})
    assert found.accepts("203.0.113.7:5", "10.0.0.1:5")
    assert not found.accepts("203.0.113.7:6", "10.0.0.1:5")
    assert found.accepts("203.0.113.8:9092", "10.0.0.1:5")
    assert found.accepts("[2001:db8::1]:7", "10.0.0.1:5")
    assert found.accepts("[2001:db8::2]:5", "[2001:db8::9]:5")
    assert not found.accepts("203.0.113.9:5", "10.0.0.1:5")
    assert Advertised.read({}).accepts("10.0.0.1:5", "10.0.0.1:5")
    for wrong in ("broker.example", "10.0.0.1:x", "10.0.0.1:5:6"):
        with pytest.raises(ValueError, match="RAYLOG_ADVERTISED_ADDRESSES takes IP addresses"):
            Advertised.read({ENV_ADVERTISED: wrong})
