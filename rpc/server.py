"""`RpcServer`: listens, authenticates peers, and passes their requests to one handler.

Started by brokers, replicas and coordinators. May touch: the network.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Callable

from raylog.rpc.auth.addresses import Advertised
from raylog.rpc.auth.credentials import Secret, to_listen
from raylog.rpc.auth.handshake import NONCE_BYTES, ServerHandshake
from raylog.rpc.connection import Connection
from raylog.rpc.host import connections_within, raise_descriptor_limit
from raylog.rpc.limits import Limits
from raylog.rpc.occasional import OccasionalWarning
from raylog.rpc.patience import Patience
from raylog.rpc.permissions import Permissions
from raylog.rpc.request import Handler, Refusals

logger = logging.getLogger(__name__)

_SWEEP_SHARE = 4  # sweeps in the shortest of the watched times
_SWEEP_MOST_S = 5.0
_SHARE_OF_MEMBERS = 10  # a tenth of the connections is kept for brokers, replicas and the controller


class _Surplus(asyncio.Protocol):
    """A connection over the server's limit, or too late: closed on arrival."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class RpcServer:
    """Listens on one address. `connections` holds the authenticated connections that are not closed.

    `on_connect` is called for each of them before their first request is read, `on_closed` when it is closed. Port 0
    lets the system choose.
    `permissions` decide what a peer may call by the role it has proved; None: everything. A secret in bytes is the
    cluster's; a source of credentials is read again for each connection. Raises ValueError for an unusable secret.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        secret: Secret,
        permissions: Permissions | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        on_connect: Callable[[Connection], None] | None = None,
        on_closed: Callable[[Connection], None] | None = None,
    ) -> None:
        to_listen(secret)  # raises for a secret too short to be secure
        self._advertised = Advertised.read()
        self.permissions = permissions
        """What its clients may call, and by which clock their tokens end; None = they may call everything."""
        self._handler = handler
        self._secret = secret
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._tls = tls
        self._on_connect = on_connect
        self._on_closed = on_closed
        self._server: asyncio.Server | None = None
        self._is_closing = False
        self._strangers: dict[Connection, None] = {}  # oldest first
        self._patience: dict[Connection, Patience] = {}
        self._sweep: asyncio.TimerHandle | None = None
        limits = self._limits
        shortest = min(limits.frame_timeout_s, limits.stalled_peer_timeout_s, limits.idle_timeout_s)
        self._sweep_interval_s = min(shortest / _SWEEP_SHARE, _SWEEP_MOST_S)
        self._max_connections = self._max_clients = limits.max_connections
        self._max_strangers = limits.max_unauthenticated
        self._clients = 0
        self._refused = OccasionalWarning(logger)
        self._replaced = OccasionalWarning(logger)
        self.connections: set[Connection] = set()
        self.refusals = Refusals(() if permissions is None else permissions.roles)
        """Requests that were answered with an error, by (method, error code), since the start."""

    def is_reached_at(self, host: str, port: int) -> None:
        """Accept clients that have dialled this address of a forwarder; port 0: with the port that this listens on."""
        self._advertised = self._advertised.and_also(host, port)

    async def start(self, host: str | None = None, port: int | None = None) -> tuple[str, int]:
        """Listen, there if given; return host and port.

        Raises OSError (address not available; another may be tried), RuntimeError (it listens already).
        """
        if self._server is not None:
            raise RuntimeError("This server has been started already; make another one.")
        self._max_connections = connections_within(raise_descriptor_limit(), self._limits.max_connections)
        self._max_strangers = max(1, min(self._limits.max_unauthenticated, self._max_connections // 4))
        self._max_clients = max(1, self._max_connections - self._max_connections // _SHARE_OF_MEMBERS)
        self._server = await asyncio.get_running_loop().create_server(
            self._new_connection,
            self._host if host is None else host,
            self._port if port is None else port,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._limits.auth_timeout_s,
            backlog=1024,
            start_serving=False,
        )
        # In a step of its own: a task cancelled while `create_server` starts to serve never gets the server to close.
        await self._server.start_serving()
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    @property
    def is_quiet(self) -> bool:
        """Whether every byte that came was handled, and every answer has been sent; answers may still be owed."""
        return not self._strangers and all(connection.is_quiet for connection in self.connections)

    async def close(self) -> None:
        """Stop listening, send what is queued, close every connection; done within `Limits.close_linger_s` or so."""
        if self._server is None:
            return
        self._is_closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        try:
            await self._stop_accepting(self._server)
        finally:  # also when this task is cancelled: the port must not stay bound
            self._server.close()
        closing = [*self.connections, *self._strangers]
        for connection in closing:
            connection.close("the server is closing")
        if closing:
            waits = [asyncio.ensure_future(connection.wait_closed()) for connection in closing]
            # A second more than the linger, after which each connection is cut anyway.
            _, late = await asyncio.wait(waits, timeout=self._limits.close_linger_s + 1)
            for wait in late:
                wait.cancel()
        await self._server.wait_closed()

    async def _stop_accepting(self, server: asyncio.Server) -> None:
        """Accept no more, and let each accepted connection get its transport.

        asyncio accepts in one step of the loop and makes the transport in the next. A server that is closed between the
        two refuses the transport, and nothing closes the socket.
        """
        loop = asyncio.get_running_loop()
        for listener in server.sockets:
            loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)

    def _new_connection(self) -> asyncio.BaseProtocol:
        if self._is_closing:
            return _Surplus()
        if len(self.connections) >= self._max_connections:
            self._refused.warn("A connection was refused: there are %d already.", self._max_connections)
            return _Surplus()
        if len(self._strangers) >= self._max_strangers:
            self._replace_oldest_stranger()
        handshake = ServerHandshake(
            to_listen(self._secret),
            secrets.token_bytes(NONCE_BYTES),
            now_s=time.time if self.permissions is None else self.permissions.now_s,
            accepts=self._advertised.accepts,
        )
        loop = asyncio.get_running_loop()
        connection = Connection(loop, handshake, self._handler, self._limits, self._authenticated, self.permissions)
        self._strangers[connection] = None
        connection.refusals = self.refusals
        connection.on_close(self._closed)
        return connection

    def _replace_oldest_stranger(self) -> None:
        """Make room for a connection: a peer with the secret authenticates in one round trip, others do not."""
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        oldest.abort("a newer connection took the place of one that had not authenticated")
        self._replaced.warn(
            "%d connections had not authenticated: the oldest was closed to make room.", len(self._strangers) + 1
        )

    def _authenticated(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        if not connection.peer_is_member:
            if self._clients >= self._max_clients:
                self._refused.warn("A client's connection was refused: there are %d already.", self._clients)
                connection.close(f"the server has {self._clients} connections of clients, the most it takes")
                return
            self._clients += 1
        self.connections.add(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._sweep_interval_s, self._look_at_connections)
        if self._on_connect is not None:
            try:
                self._on_connect(connection)
            except Exception:  # an error in the callback affects this connection only
                logger.exception("The on_connect callback failed for %s.", connection.peer)
                connection.close("the server could not set the connection up")

    def _look_at_connections(self) -> None:
        """Close connections that are stuck or idle; runs again as long as there are any."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in list(self.connections):
            patience = self._patience.setdefault(connection, Patience())
            reason = patience.verdict(now_s, connection.vitals(), self._limits, may_be_idle=connection.peer_is_member)
            if reason:
                logger.info("Connection with %s closed: %s.", connection.peer, reason)
                connection.close(reason)
        again = bool(self.connections) and not self._is_closing
        self._sweep = loop.call_later(self._sweep_interval_s, self._look_at_connections) if again else None

    def _closed(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        if connection in self.connections:
            self.connections.discard(connection)
            self._clients -= not connection.peer_is_member
            if self._on_closed is not None:
                self._on_closed(connection)
        self._patience.pop(connection, None)
