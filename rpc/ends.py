"""The addresses and certificate of a connection's two ends, for the handshake. Used by `Connection`.

May touch: its transport.
"""

from __future__ import annotations

import asyncio
import hashlib

from raylog.rpc.auth.addresses import canonical
from raylog.rpc.auth.handshake import Endpoints
from raylog.rpc.auth.tls import LoadedContext


def ends_of(transport: asyncio.BaseTransport, *, accepted: bool) -> Endpoints:
    """The server's address and certificate, as the accepting or the connecting end sees them."""
    name = transport.get_extra_info("sockname" if accepted else "peername")
    return Endpoints(address=canonical(name), certificate=_certificate(transport, accepted))


def _certificate(transport: asyncio.BaseTransport, accepted: bool) -> bytes:
    session = transport.get_extra_info("ssl_object")
    if session is None:
        return b""
    if accepted:
        context = session.context
        return context.certificate_digest if isinstance(context, LoadedContext) else b""
    shown = session.getpeercert(binary_form=True)
    return hashlib.sha256(shown).digest() if shown else b""
