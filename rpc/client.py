"""`connect()`: open an authenticated connection. Called by clients, and by actors that call each other.

May touch: the network.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl

from raylog.core.errors import ConnectionFailed
from raylog.rpc.auth.credentials import Secret, to_dial
from raylog.rpc.auth.handshake import NONCE_BYTES, ClientHandshake
from raylog.rpc.connection import Connection
from raylog.rpc.limits import Limits
from raylog.rpc.request import Handler


async def connect(
    host: str,
    port: int,
    *,
    secret: Secret,
    handler: Handler | None = None,
    timeout_s: float = 5.0,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Connect and authenticate within `timeout_s`; `handler` gets the server's requests.

    `secret` is proved to the server: bytes, a token, or a source of credentials. Raises ConnectionFailed (no listener,
    or too slow: try again), AuthenticationFailed (the secrets differ, or the connection is relayed), ValueError (no
    secret at all).
    """
    loop = asyncio.get_running_loop()
    limits = limits or Limits()
    handshake = ClientHandshake(to_dial(secret), secrets.token_bytes(NONCE_BYTES))
    connection = Connection(loop, handshake, handler, limits)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: connection, host, port, ssl=tls)
            await asyncio.shield(connection.ready)
    except TimeoutError:
        connection.abort("connecting took too long")
        raise ConnectionFailed(
            f"No connection with {host}:{port} within {timeout_s} seconds: check that the broker runs and is reachable."
        ) from None
    except (OSError, ConnectionFailed) as error:  # ssl.SSLError is an OSError
        connection.abort("connecting failed")
        raise ConnectionFailed(f"No connection with {host}:{port}: {error}") from error
    except BaseException:  # cancelled, or not authenticated: close the socket
        connection.abort("connecting was given up")
        raise
    return connection
