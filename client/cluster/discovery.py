"""Finds the cluster: by given addresses, by the environment, or through the Ray session of this process.

Used by `ClusterClient`. May touch: the environment, and Ray (imported only when nothing else was given).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raylog.base.errors import InvalidConfig, NoClusterFound
from raylog.client.cluster.credentials import (
    ENV_SECRET,
    ENV_TOKEN,
    ENV_TOKEN_FILE,
    CredentialFile,
    Proof,
    choose_credentials,
    is_token,
    newest,
    parse_secret,
)
from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.ray_session import running_ray_address
from raylog.rpc import Credentials, Secret, Token

ENV_BOOTSTRAP = "RAYLOG_BOOTSTRAP"
CONTROLLER_NAME = "controller"
RAY_NAMESPACE = "raylog"
RETRY_S = 0.2
"""Pause between two queries of a controller that is being restarted, or has no live broker yet."""

Endpoint: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """How to reach a cluster: credentials, bootstrap brokers, and whether Ray provided them."""

    proof: Proof
    endpoints: tuple[Endpoint, ...]
    through_ray: bool = False
    replaced: bytes | None = None
    """The old secret, while `proof` is about to replace it: some nodes may know only the old one. None = no change."""

    @property
    def proved(self) -> Secret:
        """The credentials for connections: during a change both the new and the old secret, as a server knows one."""
        if self.replaced is None or not isinstance(self.proof, bytes):
            return self.proof
        return Credentials(client=(self.proof, self.replaced))

    @property
    def secret(self) -> bytes | Token:
        """The secret or the token; from a file its present content."""
        return newest(self.proof)

    @property
    def proof_keys(self) -> dict[str, Any]:
        """The configuration key of a client for this proof, with its value."""
        if isinstance(self.proof, CredentialFile):
            return {"token_file" if self.proof.is_token else "secret_file": self.proof.path}
        return {"secret": self.proof}

    @property
    def is_renewable(self) -> bool:
        """Whether a living client can get another proof: a file is read again, and Ray is queried for the secret."""
        return isinstance(self.proof, CredentialFile) or (self.through_ray and isinstance(self.proof, bytes))

    def __repr__(self) -> str:
        """Shows the endpoints, never the secret."""
        return f"ClusterAddress({', '.join(f'{host}:{port}' for host, port in self.endpoints)})"


def parse_bootstrap(bootstrap: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """Parse `host:port[,host:port...]`, or a list of `host:port`. Empty parts are skipped, as in Kafka.

    Raises InvalidConfig.
    """
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


async def find_cluster(
    bootstrap: str | Sequence[str] | None,
    secret: bytes | str | Token | CredentialFile | None,
    *,
    token: str | Token | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
) -> ClusterAddress:
    """Locate the cluster: by the arguments, else by the environment, else through Ray, which knows the secret too.

    Raises NoClusterFound when none is found within `timeout_s`, InvalidConfig for malformed addresses and credentials.
    """
    bootstrap = bootstrap or environ.get(ENV_BOOTSTRAP)
    given = {"secret": secret, "token": token, "secret_file": secret_file, "token_file": token_file}
    has_token = token or token_file or is_token(secret)
    if not bootstrap and not has_token:
        tokens = {} if secret or secret_file else {name: environ.get(name, "") for name in (ENV_TOKEN, ENV_TOKEN_FILE)}
        return await _through_ray(choose_credentials({}, tokens), timeout_s)
    chosen = choose_credentials(given, environ)
    if not bootstrap:
        return await _through_ray(chosen, timeout_s)
    if chosen is None:
        raise InvalidConfig(
            f"bootstrap= needs the cluster's secret or a token: give secret=, secret_file=, token= or token_file= (in "
            f"Spark raylog.secret or raylog.token), or set {ENV_SECRET} or {ENV_TOKEN}."
        )
    return ClusterAddress(chosen, parse_bootstrap(bootstrap))


async def _through_ray(token: Proof | None, timeout_s: float) -> ClusterAddress:
    """Query the controller until it knows a live broker: after a restart they become available one after another.

    `token`: used instead of the secret that the controller returns.
    """
    deadline = Deadline(timeout_s)
    while True:
        # Ray's calls block, and must not block the loop. The query ends at its timeout, and so does the thread.
        info = await asyncio.to_thread(_query_controller, deadline.left_s)
        endpoints = () if info is None else tuple((str(host), int(port)) for _, host, port in info["brokers"])
        if info is not None and endpoints:
            before = info["replaced_secret"]
            replaced = None if before is None else parse_secret(before)
            known = token or parse_secret(info["secret"])
            return ClusterAddress(known, endpoints, through_ray=True, replaced=replaced)
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
