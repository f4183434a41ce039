"""The secrets and tokens of a process: what it proves when it connects, and which roles it accepts when it listens.

A cluster has two secrets. Brokers, replicas, coordinators and the controller prove the cluster's, and may call every
method; clients prove the clients', and may call the methods in `actors/permissions.py`. Each has one value, or two
during a rotation. A Spark task has neither: it has a token (`tokens.py`). Used by `handshake.py`, by servers and by all
connecting processes. Pure.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from raylog.base.access import Role
from raylog.rpc.auth.tokens import Token

MIN_SECRET_BYTES = 16
MAX_VALUES = 2
"""Values of one secret that are valid at the same time: the new one and the one that it replaces."""
_CLIENT_LABEL = b"raylog: the clients' secret, derived from the cluster's"


def check_secret(value: bytes) -> bytes:
    """Return the value. Raises ValueError, without the value in it, when it is too short to be secure."""
    if not value:
        raise ValueError("The cluster's secret is empty: any client could connect. Give at least 16 bytes.")
    if len(value) < MIN_SECRET_BYTES:
        raise ValueError(
            f"A secret needs at least {MIN_SECRET_BYTES} bytes ({2 * MIN_SECRET_BYTES} hexadecimal digits), this one "
            f"has {len(value)}."
        )
    return value


def derived_client_secret(cluster_secret: bytes) -> bytes:
    """The clients' secret where none was given: derived from the cluster's secret, and not reversible."""
    return hmac.digest(cluster_secret, _CLIENT_LABEL, "sha256")


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The secrets that one process knows, newest value first. Never shown, never pickled.

    In a client, `client` holds the user's value, which may also be the cluster's secret; the server determines which.
    Invariant: every value has at least `MIN_SECRET_BYTES` bytes, and each secret at most `MAX_VALUES` values.
    """

    cluster: tuple[bytes, ...] = ()
    client: tuple[bytes, ...] = ()
    token: Token | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a secret that is too short, or has too many values."""
        for values in (self.cluster, self.client):
            if len(values) > MAX_VALUES:
                raise ValueError(f"A secret has at most {MAX_VALUES} values, the new and the old one.")
            for value in values:
                check_secret(value)

    @classmethod
    def of_cluster(cls, values: Sequence[bytes], client: Sequence[bytes] = ()) -> Credentials:
        """The credentials of an actor. Without `client` the clients' values are derived from the cluster's."""
        if not values:
            raise ValueError("The cluster's secret is empty: any client could connect. Give at least 16 bytes.")
        return cls(tuple(values), tuple(client) or tuple(map(derived_client_secret, values)))

    @property
    def offered(self) -> tuple[bytes, ...]:
        """The values that a connecting process proves, any of which may be accepted."""
        return self.cluster or self.client

    def accepted(self) -> list[tuple[Role, bytes]]:
        """Every value that a connecting peer may prove, with the role that it gives."""
        return [
            *((Role.CLUSTER, value) for value in self.cluster),
            *((Role.CLIENT, value) for value in self.client),
        ]

    def __repr__(self) -> str:
        kinds = [name for name in ("cluster", "client", "token") if getattr(self, name)]
        return f"<Credentials: {', '.join(kinds) or 'none'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Credentials are never pickled: they would be kept, or shown, by what carries them.")


Secret: TypeAlias = bytes | Token | Credentials | Callable[[], Credentials]
"""A secret as callers pass it: its bytes, a token, credentials, or a source that is read for each connection."""


def to_listen(secret: Secret) -> Credentials:
    """The credentials that a server accepts now; bytes are the cluster's secret. Raises ValueError without any."""
    found = Credentials.of_cluster((secret,)) if isinstance(secret, bytes) else _current(secret)
    if not found.cluster:
        raise ValueError("A server needs the cluster's secret.")
    return found


def to_dial(secret: Secret) -> Credentials:
    """The credentials that a connecting process proves now. Raises ValueError without any."""
    found = Credentials(client=(secret,)) if isinstance(secret, bytes) else _current(secret)
    if not found.offered and found.token is None:
        raise ValueError("The cluster's secret is empty; give the secret of the cluster to connect to.")
    return found


def _current(secret: Token | Credentials | Callable[[], Credentials]) -> Credentials:
    if isinstance(secret, Credentials):
        return secret
    return Credentials(token=secret) if isinstance(secret, Token) else secret()
