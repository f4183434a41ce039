"""`connect()`: open an authenticated connection. Called by clients, and by actors that call each other.

May touch: the network.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl

from raylog.base.errors import ConnectionFailed
from raylog.rpc.auth.credentials import Secret, to_dial
from raylog.rpc.auth.handshake import NONCE_BYTES, ClientHandshake
from raylog.rpc.connection import Connection
from raylog.rpc.errors import TlsMismatch
from raylog.rpc.limits import Limits
from raylog.rpc.request import Handler

NOT_TLS = "WRONG_VERSION_NUMBER"
"""OpenSSL's reason when the answer is no TLS at all."""


async def connect(
    host: str,
    port: int,
    *,
    secret: Secret,
    handler: Handler | None = None,
    timeout_s: float = 5.0,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    is_first: bool = False,
) -> Connection:
    """Connect and authenticate within `timeout_s`; `handler` gets the server's requests.

    `secret` is proved to the server: bytes, a token, or a source of credentials. Raises ConnectionFailed (no listener,
    or too slow: try again), AuthenticationFailed (the secrets differ, the connection is relayed, or one end alone
    speaks TLS), ValueError (no secret at all). `is_first`: no earlier connection has shown that this is the right
    address, so a server that sends nothing is probed for TLS.
    """
    loop = asyncio.get_running_loop()
    limits = limits or Limits()
    handshake = ClientHandshake(to_dial(secret), secrets.token_bytes(NONCE_BYTES))
    connection = Connection(loop, handshake, handler, limits)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: connection, host, port, ssl=tls)
            if is_first and tls is None:
                await asyncio.wait([connection.ready], timeout=timeout_s / 2)
                if connection.is_silent:
                    await _require_no_tls(host, port, timeout_s / 4)
            await asyncio.shield(connection.ready)
    except TimeoutError:
        was_silent = connection.was_made and connection.is_silent
        connection.abort("connecting took too long")
        why = "it takes connections and sends nothing" if was_silent else "check that the broker runs and is reachable"
        raise ConnectionFailed(f"No connection with {host}:{port} within {timeout_s:g} seconds: {why}.") from None
    except ssl.SSLError as error:
        connection.abort("connecting failed")
        if error.reason == NOT_TLS:
            raise TlsMismatch(
                f"{host}:{port} does not speak TLS, and this process does: `unset RAY_USE_TLS`, or start the cluster "
                "with Ray's TLS variables; or another program has this address."
            ) from error
        raise ConnectionFailed(f"No connection with {host}:{port}: {error}") from error
    except (OSError, ConnectionFailed) as error:
        connection.abort("connecting failed")
        raise ConnectionFailed(f"No connection with {host}:{port}: {error}") from error
    except BaseException:  # cancelled, or not authenticated: close the socket
        connection.abort("connecting was given up")
        raise
    return connection


async def _require_no_tls(host: str, port: int, timeout_s: float) -> None:
    """Raise TlsMismatch if a server that has sent nothing answers the greeting of TLS: it was waiting for one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent over it
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.transport.abort()
    except ssl.SSLError as error:
        if error.reason == NOT_TLS or isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return
    except (OSError, TimeoutError):
        return
    raise TlsMismatch(
        f"{host}:{port} speaks TLS, and this process does not: set RAY_USE_TLS=1, RAY_TLS_SERVER_CERT, "
        "RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT as for the cluster (`docs/operations.md`, TLS)."
    )
