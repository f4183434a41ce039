"""TLS contexts from the environment variables that Ray itself uses, so that one configuration serves both.

A context reads its files again when they change, so that renewed certificates and authorities apply from the next
connection on. Used by all listeners and connecting clients. May touch: the environment, and the certificate files it
names.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

logger = logging.getLogger(__name__)

_ON, _OFF = ("1", "true"), ("", "0", "false")
_VARIABLES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def tls_is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether RAY_USE_TLS is on. Raises ValueError for a value that Ray would silently treat as off."""
    text = environ.get("RAY_USE_TLS", "").strip().lower()
    if text in _ON:
        return True
    if text in _OFF:
        return False
    raise ValueError(
        f"RAY_USE_TLS={environ['RAY_USE_TLS']!r} means nothing to Ray, which would go on without TLS: set it to 1 for "
        "TLS, or to 0."
    )


class LoadedContext(ssl.SSLContext):
    """A context as the files were at one moment."""

    certificate_digest: bytes = b""
    """SHA-256 of our own certificate; the handshake detects a relaying server by it."""


class ReloadingContext(ssl.SSLContext):
    """Stands for a context whose files may change: each connection gets one made of the current files.

    Unusable files, for example when only one of two has been replaced, are reported once; the previous context is used
    until they are usable.
    """

    def __new__(cls, *, server_side: bool, files: tuple[str, str, str]) -> Self:
        """Load the files. Raises OSError and ssl.SSLError when they cannot be used."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        self._is_server = server_side
        self._files = files
        self._seen = _states(files)
        self._loaded = _load(server_side, *files)
        return self

    _is_server: bool
    _files: tuple[str, str, str]
    _seen: list[tuple[int, int, int] | None]
    _loaded: LoadedContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """For asyncio, which calls this for each connection."""
        return self.current().wrap_bio(*args, **kwargs)

    def current(self) -> LoadedContext:
        """The context made of the current files, or of the last usable ones."""
        states = _states(self._files)
        if states != self._seen:
            self._seen = states
            try:
                self._loaded = _load(self._is_server, *self._files)
                logger.info("TLS certificates were read again from %s", ", ".join(sorted(set(self._files))))
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                logger.error("The changed TLS files cannot be used, those from before still hold: %s", error)
        return self._loaded


def _states(files: tuple[str, ...]) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return found


def _load(server_side: bool, certificate: str, key: str, authority: str) -> LoadedContext:
    context = LoadedContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(cafile=authority)
    context.verify_mode = ssl.CERT_REQUIRED
    first = Path(certificate).read_text(encoding="ascii", errors="replace")
    begin, end = first.find(ssl.PEM_HEADER), first.find(ssl.PEM_FOOTER)
    leaf = ssl.PEM_cert_to_DER_cert(first[begin : end + len(ssl.PEM_FOOTER)])
    context.certificate_digest = hashlib.sha256(leaf).digest()
    return context


def _files(environ: Mapping[str, str]) -> tuple[str, str, str]:
    missing = [name for name in _VARIABLES if not environ.get(name)]
    if missing:
        raise ValueError(
            f"RAY_USE_TLS is on: {', '.join(missing)} must name the file to use. Without the authority's certificate "
            "no certificate would be checked."
        )
    return environ[_VARIABLES[0]], environ[_VARIABLES[1]], environ[_VARIABLES[2]]


def server_context(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """The context for accepting connections, or None when RAY_USE_TLS is off.

    Clients must show a certificate of the authority in RAY_TLS_CA_CERT. Raises ValueError for missing variables and for
    a RAY_USE_TLS that is neither on nor off, OSError and ssl.SSLError for unusable files.
    """
    return ReloadingContext(server_side=True, files=_files(environ)) if tls_is_on(environ) else None


def client_context(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext | None:
    """The context for making connections, or None when RAY_USE_TLS is off. Errors as for `server_context`.

    The server's certificate must be signed by the authority, and name the host or address of the connection.
    """
    return ReloadingContext(server_side=False, files=_files(environ)) if tls_is_on(environ) else None
