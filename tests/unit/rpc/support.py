"""A server with an echo handler, raw sockets that misbehave, and waiting on conditions. Used by the tests beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from raylog.rpc import Connection, Handler, Limits, Request, RpcServer, Secret, connect
from raylog.rpc.auth.addresses import canonical
from raylog.rpc.auth.credentials import to_dial
from raylog.rpc.auth.handshake import ClientHandshake, Endpoints
from raylog.rpc.framing import decode_args

SECRET = b"the cluster's secret"


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds; name it in the error when it does not."""
    deadline = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.002)


async def until_full(connection: Connection) -> None:
    """Wait until the peer's socket takes no more answers: the connection stays behind, with the same unsent bytes."""
    last, same = -1, 0

    def settled() -> bool:
        nonlocal last, same
        unsent = connection.statistics()["unsent_bytes"] if connection.is_behind else -1
        same = same + 1 if unsent == last >= 0 else 0
        last = unsent
        return same >= 30

    await until(settled, "the socket takes no more")


class HandlerBug(Exception):
    """The error of the handler below on request."""


@dataclass
class Echo:
    """A handler with a few methods, which records its requests."""

    seen: list[tuple[str, Any]] = field(default_factory=list)
    kept: list[Request] = field(default_factory=list)

    def __call__(self, request: Request) -> None:
        args = decode_args(request.args)
        self.seen.append((request.method, args))
        match request.method:
            case "echo":
                request.reply(request.args, request.payload)
            case "size":
                request.reply(len(request.payload))
            case "blob":
                request.reply(None, bytes(args[0]))
            case "raise":
                raise HandlerBug("the handler broke")
            case "keep":
                self.kept.append(request)
            case "drop" | "note":
                pass
            case _:
                request.fail(LookupError(request.method))


@dataclass
class Place:
    """A running server and its address."""

    server: RpcServer
    host: str
    port: int
    echo: Echo

    async def connect(self, **options: Any) -> Connection:
        return await connect(self.host, self.port, **{"secret": SECRET, **options})

    async def still_serves(self) -> None:
        """A new client is served: earlier events have affected no other connection."""
        connection = await self.connect()
        reply = await connection.call("echo", ["alive"], b"payload", timeout_s=5)
        assert (reply.args, bytes(reply.payload)) == (["alive"], b"payload")
        await leave(connection)


@asynccontextmanager
async def serving(handler: Handler | None = None, **options: Any) -> AsyncIterator[Place]:
    echo = Echo()
    server = RpcServer(handler or echo, **{"secret": SECRET, **options})
    host, port = await server.start()
    try:
        yield Place(server, host, port, echo)
    finally:
        await server.close()


async def leave(connection: Connection) -> None:
    connection.close()
    await connection.wait_closed()


@asynccontextmanager
async def stranger(place: Place) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw TCP connection that has sent nothing yet."""
    reader, writer = await asyncio.open_connection(place.host, place.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass  # the server cut it first, as it should


@asynccontextmanager
async def raw_peer(place: Place, secret: Secret) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw TCP connection that has authenticated, and may now send any bytes it likes."""
    async with stranger(place) as (reader, writer):
        handshake = ClientHandshake(to_dial(secret), bytes(range(32)))
        handshake.bind(Endpoints(address=canonical(writer.get_extra_info("peername"))))
        while handshake.wanted_bytes:
            writer.write(handshake.receive(await reader.readexactly(handshake.wanted_bytes)))
        yield reader, writer


@asynccontextmanager
async def raw_member(place: Place) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The same, with the cluster's secret."""
    async with raw_peer(place, SECRET) as ends:
        yield ends


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes this connection in good time."""
    try:
        async with asyncio.timeout(10):
            while await reader.read(65536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def limits(**options: Any) -> Limits:
    return Limits(**options)
