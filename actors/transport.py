"""How actors listen and connect: the cluster's secrets, and TLS when Ray uses it (``RAY_USE_TLS``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from ssl import SSLContext
from typing import Final, Protocol

from raylog.actors.token_clock import token_clock
from raylog.base.errors import StartFailed
from raylog.core.configuration.listeners import is_loopback
from raylog.rpc import (
    Connection,
    Handler,
    Permissions,
    RpcServer,
    Secret,
    client_context,
    connect,
    server_context,
    tls_is_on,
)
from raylog.rpc.auth.credentials import to_listen

PLAINTEXT_HINT: Final = (
    "Set Ray's TLS variables (RAY_USE_TLS=1 and the three files) wherever Ray is started, or, if the network between "
    "the nodes and the clients is trusted, say so: `raylog start --allow-plaintext`, or "
    "raylog.start(allow_plaintext=True)."
)


@lru_cache(maxsize=1)
def contexts() -> tuple[SSLContext | None, SSLContext | None]:
    """Return the TLS contexts for accepting and for making connections; both None when TLS is off."""
    return server_context(), client_context()


def check_plaintext(host: str, *, allow_plaintext: bool) -> None:
    """Raise :class:`StartFailed` when records would be readable on the network without ``allow_plaintext``."""
    if not allow_plaintext and not is_loopback(host) and not tls_is_on():
        raise StartFailed(
            f"{host} is reached over the network, and without TLS: records could be read, and connections taken over, "
            f"on the way. {PLAINTEXT_HINT}"
        )


class Listens(Protocol):
    """What a process needs to know to listen; part of the actors' specifications."""

    @property
    def secret(self) -> Secret: ...
    @property
    def host(self) -> str: ...
    @property
    def allow_plaintext(self) -> bool: ...


def listen(
    handler: Handler,
    spec: Listens,
    permissions: Permissions,
    *,
    on_connect: Callable[[Connection], None] | None = None,
    on_closed: Callable[[Connection], None] | None = None,
) -> RpcServer:
    """Return a server that is not started yet: :func:`raylog.actors.listening.open_endpoint` starts it.

    Raises :class:`StartFailed` for an address beyond this machine without TLS, unless the specification allows it.
    """
    check_plaintext(spec.host, allow_plaintext=spec.allow_plaintext)
    return RpcServer(
        handler,
        secret=spec.secret,
        permissions=replace(permissions, now_s=token_clock().now_s),
        host=spec.host,
        tls=contexts()[0],
        on_connect=on_connect,
        on_closed=on_closed,
    )


def secrets_for_clients(secret: Secret) -> dict[str, bytes | None]:
    """Return the newest value of the clients' secret, and the one that it replaces, while both are valid.

    A client proves both: while the secret is being changed, nodes get the new value one after the other.
    """
    newest, *replaced = to_listen(secret).client
    return {"secret": newest, "replaced_secret": replaced[0] if replaced else None}


async def dial(host: str, port: int, *, secret: Secret, timeout_s: float, handler: Handler | None = None) -> Connection:
    """Return an authenticated connection. Raises :class:`~raylog.base.errors.RaylogError` within ``timeout_s``."""
    return await connect(host, port, secret=secret, handler=handler, timeout_s=timeout_s, tls=contexts()[1])
