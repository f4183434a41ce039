"""TLS contexts from the environment variables that Ray itself uses, so that one configuration serves both.

Called by whoever builds servers and connections. May touch: the environment, and the certificate files it names.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping


def _is_on(environ: Mapping[str, str]) -> bool:
    return environ.get("RAY_USE_TLS", "0").strip().lower() in ("1", "true")


def _load(context: ssl.SSLContext, environ: Mapping[str, str]) -> None:
    certificate, key = environ.get("RAY_TLS_SERVER_CERT"), environ.get("RAY_TLS_SERVER_KEY")
    if not certificate or not key:
        raise ValueError("RAY_USE_TLS is on: RAY_TLS_SERVER_CERT and RAY_TLS_SERVER_KEY must name the files to use.")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)


def server_context(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """The context for accepting connections, or None when RAY_USE_TLS is off.

    With RAY_TLS_CA_CERT, clients must show a certificate of that authority, as in Ray. Raises ValueError for missing
    variables, OSError and ssl.SSLError for unusable files.
    """
    if not _is_on(environ):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, environ)
    authority = environ.get("RAY_TLS_CA_CERT")
    if authority:
        context.load_verify_locations(cafile=authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """The context for making connections, or None when RAY_USE_TLS is off. Errors as for `server_context`.

    The server's certificate must name the host or address that is connected to.
    """
    if not _is_on(environ):
        return None
    context = ssl.create_default_context(cafile=environ.get("RAY_TLS_CA_CERT") or None)
    _load(context, environ)
    return context
