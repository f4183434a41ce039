"""Finding the cluster: by given addresses, by the environment, or through the Ray session of this process.

Used by `ClusterClient`. May touch: the environment, and Ray (imported only when nothing else was given).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.ray_session import running_ray_address
from raylog.core.errors import InvalidConfig, NoClusterFound
from raylog.rpc import Token
from raylog.rpc.auth.credentials import check_secret
from raylog.rpc.auth.token_text import PREFIX, parse_token
from raylog.rpc.auth.tokens import TokenError

ENV_BOOTSTRAP = "RAYLOG_BOOTSTRAP"
ENV_SECRET = "RAYLOG_SECRET"  # the name of a variable, not a secret
ENV_TOKEN = "RAYLOG_TOKEN"  # the same
CONTROLLER_NAME = "controller"
RAY_NAMESPACE = "raylog"
RETRY_S = 0.2
"""Between two queries of a controller that is being restarted, or knows no broker yet."""

Endpoint: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """How to reach a cluster: a secret or a token, bootstrap brokers, and the source of both."""

    secret: bytes | Token
    endpoints: tuple[Endpoint, ...]
    through_ray: bool = False

    def __repr__(self) -> str:
        """Never show the secret."""
        return f"ClusterAddress({', '.join(f'{host}:{port}' for host, port in self.endpoints)})"


def parse_bootstrap(bootstrap: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """Read `host:port[,host:port...]`; empty parts are skipped, as of Kafka. Raises InvalidConfig."""
    parts: list[object] = []
    if isinstance(bootstrap, str):
        parts += bootstrap.split(",")
    elif isinstance(bootstrap, Sequence):
        parts += bootstrap
    endpoints = []
    for item in parts:
        if not isinstance(item, str):
            raise InvalidConfig(f"bootstrap must be 'host:port[,host:port...]', or a list of those, not {item!r:.100}.")
        part = item.strip()
        if not part:
            continue
        host, _, port = part.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InvalidConfig(f"bootstrap must be 'host:port[,host:port...]'; {part!r} is not host:port.")
        endpoints.append((host.strip("[]"), int(port)))
    if not endpoints:
        raise InvalidConfig(f"bootstrap must be 'host:port[,host:port...]', not {bootstrap!r:.100}.")
    return tuple(endpoints)


def parse_secret(secret: bytes | str) -> bytes:
    """A secret in bytes; text is its hexadecimal form. Raises InvalidConfig, without the secret in it."""
    if isinstance(secret, str):
        if secret.startswith(PREFIX):
            raise InvalidConfig("The secret is a token: give it as token, not as secret.")
        try:
            secret = bytes.fromhex((secret.split() or [""])[0])  # of a file with two values the newest
        except ValueError:
            raise InvalidConfig("A secret given as text must be hexadecimal (secret.hex()); or give bytes.") from None
    if not secret:
        raise InvalidConfig("The secret is empty; give the cluster's.")
    try:
        return check_secret(bytes(secret))
    except ValueError as error:
        raise InvalidConfig(str(error)) from None


def read_token(token: str | Token) -> Token:
    """A token; text is its line. Raises InvalidConfig, without the token in it."""
    try:
        return token if isinstance(token, Token) else parse_token(token)
    except TokenError as error:
        raise InvalidConfig(str(error)) from None


def choose_credentials(
    secret: bytes | str | Token | None, token: str | Token | None, environ: Mapping[str, str] = os.environ
) -> bytes | Token | None:
    """The secret or the token to prove: the arguments win, then the environment. None: neither is given.

    Raises InvalidConfig when both are given in the same place, and for malformed ones.
    """
    names = ("secret", "token")
    if not secret and not token:
        secret, token = environ.get(ENV_SECRET), environ.get(ENV_TOKEN)
        names = (ENV_SECRET, ENV_TOKEN)
    if secret and token:
        raise InvalidConfig(
            f"{names[0]} and {names[1]} are both given: leave one out, the token if this client may do everything."
        )
    if token:
        return read_token(token)
    return secret if isinstance(secret, Token) else parse_secret(secret) if secret else None


async def find_cluster(
    bootstrap: str | Sequence[str] | None,
    secret: bytes | str | Token | None,
    *,
    token: str | Token | None = None,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
) -> ClusterAddress:
    """Locate the cluster: the arguments win, then the environment, then Ray, which knows the secret as well.

    Raises NoClusterFound when there is none within `timeout_s`, InvalidConfig for malformed addresses and credentials.
    """
    bootstrap = bootstrap or environ.get(ENV_BOOTSTRAP)
    if not bootstrap and not isinstance(secret, Token) and not token:
        token = None if secret else environ.get(ENV_TOKEN)
        return await _through_ray(read_token(token) if token else None, timeout_s)
    chosen = choose_credentials(secret, token, environ)
    if not bootstrap:
        return await _through_ray(chosen if isinstance(chosen, Token) else None, timeout_s)
    if chosen is None:
        raise InvalidConfig(
            f"bootstrap= needs the cluster's secret or a token: give secret= or token= (in Spark raylog.secret or "
            f"raylog.token), or set {ENV_SECRET} or {ENV_TOKEN}."
        )
    return ClusterAddress(chosen, parse_bootstrap(bootstrap))


async def _through_ray(token: Token | None, timeout_s: float) -> ClusterAddress:
    """Query the controller until it answers with a broker: after a restart, controller and brokers return by turns."""
    deadline = Deadline(timeout_s)
    while True:
        # Ray's calls block, and they must not stop the loop; the thread ends at the deadline it is given.
        info = await asyncio.to_thread(_query_controller, deadline.left_s)
        endpoints = () if info is None else tuple((str(host), int(port)) for _, host, port in info["brokers"])
        if info is not None and endpoints:
            return ClusterAddress(token or parse_secret(info["secret"]), endpoints, through_ray=True)
        if deadline.is_over:
            if info is None:
                raise NoClusterFound("The Raylog controller is being restarted, and was not reached in time.")
            raise NoClusterFound("The Raylog cluster has no live broker; `raylog status` shows what it waits for.")
        await asyncio.sleep(RETRY_S)


def _query_controller(timeout_s: float) -> dict[str, Any] | None:
    """Return the controller's answer; None while Ray restarts it. Raises NoClusterFound."""
    try:
        import ray
    except ImportError:
        raise NoClusterFound('Ray is not installed here; pass bootstrap="host:port" and secret=.') from None
    if not ray.is_initialized():
        address = running_ray_address()
        if address is None:
            raise NoClusterFound()
        try:
            ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            raise NoClusterFound() from None
    try:
        controller: Any = ray.get_actor(CONTROLLER_NAME, namespace=RAY_NAMESPACE)
        return dict(ray.get(controller.connection_info.remote(), timeout=timeout_s))
    except ValueError:
        raise NoClusterFound() from None
    except ray.exceptions.GetTimeoutError:
        raise NoClusterFound(f"The Raylog controller did not answer within {timeout_s:.0f} seconds.") from None
    except ray.exceptions.ActorUnavailableError:
        return None
    except ray.exceptions.RayError as error:
        raise NoClusterFound(f"The Raylog controller could not be queried: {error}") from error
