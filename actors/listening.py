"""Opens a server at its configured address, else at the port that it had before, which is kept in a file.

Clients and firewalls may be configured with a port, so a process that starts again on its machine takes the port that
it had. If that port is in use, the process takes another one and logs it, because a `bootstrap=` may name the old one.
Used by the shells of brokers, replicas, coordinators and the controller. May touch: the network, and that file.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from raylog.actors.transport import Listens, check_plaintext
from raylog.base.errors import InvalidConfig, RaylogError, StartFailed
from raylog.core.configuration.listeners import (
    ADVERTISED,
    LISTENERS,
    NATIVE,
    Binding,
    bracketed,
    native_binding,
    parse_listeners,
)
from raylog.rpc import RpcServer
from raylog.storage.files import read_text, write_atomically
from raylog.storage.folder_lock import parse_properties

logger = logging.getLogger(__name__)

KEPT_FILE: Final = "listeners.properties"
"""Name of the file: in a broker's directory, in a partition's folder, and for the controller beside the secrets."""
PORT_KEY: Final = f"port.{NATIVE}"
FIRST_PORTS: Final = range(18_100, 19_000)
"""Ports for new brokers. Higher ports may be used for outgoing connections, which could take one while its broker is
down."""
FIRST_TRIES: Final = 8
"""How many of these ports, chosen at random, a new broker tries."""
VARIABLES: Final[Mapping[str, str]] = {
    LISTENERS: "RAYLOG_LISTENERS",
    ADVERTISED: "RAYLOG_ADVERTISED_LISTENERS",
}
"""Environment variables which, set where Ray is started on a node, win over the cluster's configuration."""
TAKEN: Final = (errno.EADDRINUSE, errno.EACCES)

Endpoint = tuple[str, int]


def settings_here(config: Mapping[str, str]) -> dict[str, str]:
    """Return both settings as they apply to this node. Raises InvalidConfig, which names the variable."""
    found = listeners_in(config)
    for key, variable in VARIABLES.items():
        if text := os.environ.get(variable, "").strip():
            try:
                found[key] = ",".join(map(str, parse_listeners(key, text).values()))
            except InvalidConfig as error:
                raise InvalidConfig(f"{variable}: {error.message}") from None
    return found


def listeners_in(config: Mapping[str, str]) -> dict[str, str]:
    """Return those of the two settings that a configuration has."""
    return {key: config[key] for key in VARIABLES if key in config}


def kept_values(file: Path | None) -> dict[str, str]:
    """Return the values that a file keeps; empty if it cannot be read."""
    try:
        return {} if file is None else parse_properties(read_text(file) or "")
    except RaylogError:
        return {}


def keep_values(file: Path | None, values: Mapping[str, str]) -> None:
    """Write the values, unless the file has them. A failure is only logged: the next start may get another port."""
    if file is None or not file.parent.is_dir() or kept_values(file) == values:
        return
    try:
        lines = "".join(f"{key}={value}\n" for key, value in sorted(values.items()))
        write_atomically(file, lines.encode(), durable=False)
    except RaylogError as error:
        logger.warning("%s was not written, the port may be another one after the next start: %s", file, error)


def keep_settings(file: Path | None, config: Mapping[str, str]) -> None:
    """Keep the cluster's settings for the next start, when the process has to listen before it knows them."""
    port = {key: value for key, value in kept_values(file).items() if key == PORT_KEY}
    keep_values(file, {**port, **listeners_in(config)})


async def open_endpoint(
    server: RpcServer,
    spec: Listens,
    *,
    name: str,
    config: Mapping[str, str],
    kept: Path | None,
    is_broker: bool = False,
) -> Endpoint:
    """Start a server of the process `name`; returns the address at which others reach it.

    ``spec.host``: the node's own address. ``config``: has both settings where they are not the defaults. ``kept``: the
    file with the port from before. ``is_broker``: only brokers have configured ports, and clients are configured with
    the ports of brokers. Raises :class:`StartFailed` where a configured address is not available, and
    :class:`InvalidConfig`.
    """
    binding = native_binding(settings_here(config), spec.host, is_broker=is_broker)
    check_plaintext(binding.host, allow_plaintext=spec.allow_plaintext)
    if binding.port:
        port = await _at_the_configured(server, binding, name)
    else:
        port = await _at_a_free_port(server, binding.host, name, _port(kept_values(kept)), is_broker=is_broker)
    settings = listeners_in(config) if is_broker else {}
    keep_values(kept, {**settings, PORT_KEY: str(port)})
    if binding.is_elsewhere:
        await _accept_advertised(server, binding, name)
    return binding.advertised_host, binding.advertised_port or port


async def _at_the_configured(server: RpcServer, binding: Binding, name: str) -> int:
    try:
        return (await server.start(binding.host, binding.port))[1]
    except OSError as error:
        place = f"{bracketed(binding.host)}:{binding.port}"
        raise StartFailed(f"{LISTENERS}: {name} cannot listen at {place}: {why_not(error, binding.port)}") from error


def why_not(error: OSError, port: int) -> str:
    """Return why an address is not available, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"another process has this port (`ss -ltnp 'sport = :{port}'` shows it). Choose another port, or end it."
    if error.errno == errno.EACCES:
        return "ports below 1024 are privileged. Choose one above, or give the Python of this machine the right to it."
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address. Leave the host out, or name one of `ip address`."
    return str(error)


async def _at_a_free_port(server: RpcServer, host: str, name: str, before: int, *, is_broker: bool) -> int:
    taken = False
    for port in (*_candidates(before, is_broker=is_broker), 0):
        try:
            _, found = await server.start(host, port)
        except OSError as error:
            if not port or error.errno not in TAKEN:
                raise StartFailed(f"{name} cannot listen on {host}: {why_not(error, port)}") from error
            taken = taken or port == before
            continue
        if taken:
            level = logging.WARNING if is_broker else logging.INFO
            advice = "; clients whose bootstrap= names the former port need the new one" if is_broker else ""
            logger.log(level, "port %d, which %s had before, is taken: it has %d now%s", before, name, found, advice)
        return found
    raise AssertionError("port 0 is the last, and is returned or raised")


def _candidates(before: int, *, is_broker: bool) -> Iterable[int]:
    if before:
        yield before
    if is_broker:
        yield from random.sample(FIRST_PORTS, FIRST_TRIES)  # spreads clusters of one machine, no security purpose


def _port(values: Mapping[str, str]) -> int:
    text = values.get(PORT_KEY, "")
    return int(text) if text.isdecimal() and int(text) < 65_536 else 0


async def _accept_advertised(server: RpcServer, binding: Binding, name: str) -> None:
    """Let the server accept connections to the advertised address: the handshake checks which address was dialled."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(binding.advertised_host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        logger.warning(
            "%s: the host %s of %s is not known on this machine: %s", name, binding.advertised_host, ADVERTISED, error
        )
        return
    for address in {str(entry[4][0]).partition("%")[0] for entry in found}:
        server.is_reached_at(address, binding.advertised_port)
