"""How actors listen and connect: the cluster's secret, and TLS when Ray uses it (``RAY_USE_TLS``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ssl import SSLContext

from raylog.rpc import Connection, Handler, RpcServer, client_context, connect, server_context


@lru_cache(maxsize=1)
def contexts() -> tuple[SSLContext | None, SSLContext | None]:
    """Return the contexts for accepting and for making connections; None each when TLS is off."""
    return server_context(), client_context()


def listen(
    handler: Handler, *, secret: bytes, host: str, on_connect: Callable[[Connection], None] | None = None
) -> RpcServer:
    """Return a server that is not started yet, on a port of the system's choice."""
    return RpcServer(handler, secret=secret, host=host, tls=contexts()[0], on_connect=on_connect)


async def dial(host: str, port: int, *, secret: bytes, timeout_s: float, handler: Handler | None = None) -> Connection:
    """Return an authenticated connection; raises :class:`raylog.rpc.RpcError` within ``timeout_s``."""
    return await connect(host, port, secret=secret, handler=handler, timeout_s=timeout_s, tls=contexts()[1])
