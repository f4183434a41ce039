"""`RpcServer`: listens, proves who connects, and gives their requests to one handler.

Started by brokers, replicas and coordinators. May touch: the network.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable

from raylog.rpc.auth import NONCE_BYTES, ServerHandshake
from raylog.rpc.connection import Connection
from raylog.rpc.limits import Limits
from raylog.rpc.request import Handler

logger = logging.getLogger(__name__)


class _Surplus(asyncio.Protocol):
    """A connection over the server's limit, or too late: closed as soon as it is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class RpcServer:
    """Listens on one address. `connections` holds the authenticated connections that are not closed.

    `on_connect` is called for each of them before their first request is read. Port 0 lets the system choose.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        on_connect: Callable[[Connection], None] | None = None,
    ) -> None:
        if not secret:
            raise ValueError("The cluster's secret is empty: anybody could connect. Give at least one byte.")
        self._handler = handler
        self._secret = secret
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._tls = tls
        self._on_connect = on_connect
        self._server: asyncio.Server | None = None
        self._is_closing = False
        self._strangers: set[Connection] = set()
        self.connections: set[Connection] = set()

    async def start(self) -> tuple[str, int]:
        """Listen; return host and port. Raises OSError (no such address to be had), RuntimeError (second call)."""
        if self._server is not None:
            raise RuntimeError("This server has been started already; make another one.")
        self._server = await asyncio.get_running_loop().create_server(
            self._new_connection,
            self._host,
            self._port,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._limits.auth_timeout_s,
            backlog=1024,
            start_serving=False,
        )
        # In a step of its own: who is cancelled while `create_server` begins to serve never learns what was opened.
        await self._server.start_serving()
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def close(self) -> None:
        """Stop listening, send what is queued, close every connection; done within `Limits.close_linger_s` or so."""
        if self._server is None:
            return
        self._is_closing = True
        self._server.close()
        closing = [*self.connections, *self._strangers]
        for connection in closing:
            connection.close("the server is closing")
        if closing:
            waits = [asyncio.ensure_future(connection.wait_closed()) for connection in closing]
            # A second more than the linger, after which each connection is cut by itself.
            _, late = await asyncio.wait(waits, timeout=self._limits.close_linger_s + 1)
            for wait in late:
                wait.cancel()
        await self._server.wait_closed()

    def _new_connection(self) -> asyncio.BaseProtocol:
        if self._is_closing:
            return _Surplus()
        if len(self.connections) + len(self._strangers) >= self._limits.max_connections:
            logger.warning("A connection was refused: there are %d already.", self._limits.max_connections)
            return _Surplus()
        handshake = ServerHandshake(self._secret, secrets.token_bytes(NONCE_BYTES))
        loop = asyncio.get_running_loop()
        connection = Connection(loop, handshake, self._handler, self._limits, self._authenticated)
        self._strangers.add(connection)
        connection.on_close(self._closed)
        return connection

    def _authenticated(self, connection: Connection) -> None:
        self._strangers.discard(connection)
        self.connections.add(connection)
        if self._on_connect is not None:
            try:
                self._on_connect(connection)
            except Exception:  # the callback's bug concerns this connection alone
                logger.exception("The on_connect callback failed for %s.", connection.peer)
                connection.close("the server could not set the connection up")

    def _closed(self, connection: Connection) -> None:
        self._strangers.discard(connection)
        self.connections.discard(connection)
