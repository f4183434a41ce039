"""The connections of one client: one per endpoint, opened on demand and shared by concurrent callers.

Used by `ClusterClient`. May touch: the network, the event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from raylog.base.errors import ClientClosed, RaylogError, RequestTimedOut
from raylog.client.cluster.credentials import CredentialFile
from raylog.client.cluster.discovery import Endpoint
from raylog.client.cluster.reachable import Reach
from raylog.client.tasks import outcome
from raylog.protocol.method import Method, ReplyT, RequestT
from raylog.rpc import Connection, Secret, Token, client_context, connect

CONNECT_TIMEOUT_S = 5.0
TOKEN_MARGIN_S = 10.0
"""How long before the expiry of a token from a file its connection is closed, at most, because clocks differ."""
TOKEN_PAUSE_S = 0.1
"""The least lifetime of a connection, while the file still holds the token that is about to expire."""


class ConnectionPool:
    """Live connections by endpoint. Everything here belongs to one event loop."""

    def __init__(
        self,
        secret: Secret,
        name: str = "",
        on_lost: Callable[[Endpoint], object] | None = None,
        brokers: Callable[[], Sequence[Endpoint]] = tuple,
        on_replaced: Callable[[], object] | None = None,
    ) -> None:
        """`name` (of the client) and `brokers` (their addresses now) are for the log.

        `on_lost` is called when a connection ends before the pool is closed; `on_replaced` when a broker has accepted
        the secret but reports that it is about to end.
        """
        self.secret = secret
        self._reach = Reach(name, brokers)
        self._on_lost = on_lost
        self._on_replaced = on_replaced
        self._tls = client_context()
        self._open: dict[Endpoint, Connection] = {}
        self._opening: dict[Endpoint, asyncio.Task[Connection]] = {}
        self._is_closed = False
        self.was_used = False
        """Whether a connection was ever opened."""
        self.proved_s = -math.inf
        """When a server last accepted the secret as one that is not about to end (`time.monotonic`)."""

    def live(self, endpoint: Endpoint) -> Connection | None:
        """The connection with this endpoint if it is open now."""
        connection = self._open.get(endpoint)
        return connection if connection is not None and not connection.is_closed else None

    @property
    def endpoints(self) -> list[Endpoint]:
        """Endpoints with an open connection."""
        return [endpoint for endpoint, connection in self._open.items() if not connection.is_closed]

    @property
    def trouble(self) -> str:
        """Why the last attempt to connect failed; empty while any connection is open."""
        return "" if self.endpoints else self._reach.trouble

    async def get(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        """The open connection with this endpoint, opened on demand.

        Raises ConnectionFailed, AuthenticationFailed, ClientClosed.
        """
        connection = self.live(endpoint)
        if connection is not None:
            return connection
        if self._is_closed:
            raise ClientClosed("The client is closed; make a new one.")
        task = self._opening.get(endpoint)
        if task is None:
            task = asyncio.ensure_future(self._connect(endpoint, min(timeout_s, CONNECT_TIMEOUT_S)))
            self._opening[endpoint] = task
            task.add_done_callback(lambda done: self._opened(endpoint, done))
        try:
            # A cancelled caller must not cancel the attempt for the other waiters.
            async with asyncio.timeout(timeout_s):
                return await outcome(task, lambda: self._is_closed, "connected")
        except TimeoutError as error:
            place = f"{endpoint[0]}:{endpoint[1]}"
            raise RequestTimedOut(
                f"No connection with {place} yet: check that the broker runs and is reachable."
            ) from error

    async def close(self) -> None:
        """Close every connection, and cancel those being opened. Queued data is sent first."""
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening, timeout=1)
        connections = list(self._open.values())
        for connection in connections:
            connection.close("the client was closed")
        waits = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
        if waits:
            _, late = await asyncio.wait(waits, timeout=6)  # a second more than the connection's own linger
            for wait in late:
                wait.cancel()
        self._open.clear()

    async def is_proof_replaced(self, endpoint: Endpoint, timeout_s: float) -> bool:
        """Whether this pool's secret is about to end. Opens a connection to find out, and closes it at once.

        Raises ConnectionFailed, AuthenticationFailed.
        """
        connection = await connect(*endpoint, secret=self.secret, timeout_s=timeout_s, tls=self._tls, is_first=False)
        connection.close("it has proved a secret")
        self._proved(connection)
        return connection.is_replaced

    def _proved(self, connection: Connection) -> None:
        if not connection.is_replaced:
            self.proved_s = time.monotonic()

    async def _connect(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        try:
            connection = await connect(
                *endpoint, secret=self.secret, timeout_s=timeout_s, tls=self._tls, is_first=not self.was_used
            )
        except RaylogError as error:
            if not self.endpoints:
                self._reach.failed(endpoint, error.message)
            raise
        self._reach.reached(endpoint)
        self.was_used = True
        self._open[endpoint] = connection
        connection.on_close(lambda closed: self._forget(endpoint, closed))
        self._proved(connection)
        if connection.is_replaced and self._on_replaced is not None:
            self._on_replaced()
        if isinstance(self.secret, CredentialFile) and isinstance(token := self.secret.newest, Token):
            _end_before(connection, token.grant.expires_s)
        return connection

    def _opened(self, endpoint: Endpoint, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(endpoint, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the waiters got it too, or have given up

    def _forget(self, endpoint: Endpoint, connection: Connection) -> None:
        if self._open.get(endpoint) is connection:
            del self._open[endpoint]
            if self._on_lost is not None and not self._is_closed:
                self._on_lost(endpoint)


def _end_before(connection: Connection, expires_s: float) -> None:
    """Close a connection shortly before its token expires, so that the next one uses the token then in the file.

    A lost connection is opened again and its requests are repeated; a request with an expired token fails for good.
    """
    left_s = max(0.0, expires_s - time.time())
    delay_s = max(TOKEN_PAUSE_S, left_s - min(TOKEN_MARGIN_S, left_s / 10))
    timer = asyncio.get_running_loop().call_later(delay_s, connection.close, "its token ends")
    connection.on_close(lambda _: timer.cancel())


async def call(
    connection: Connection, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float
) -> tuple[ReplyT, memoryview]:
    """Send a request; return the decoded reply and its payload. Raises RaylogError."""
    reply = await connection.call(method.name, request, timeout_s=timeout_s)
    return method.read_reply(reply.args), reply.payload
