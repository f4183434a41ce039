"""Where servers listen, and the addresses at which others reach them: `listeners` and `advertised.listeners`. Pure.

Kafka's syntax, `NAME://host:port[,...]`, one entry per name. A name stands for a protocol: RAYLOG is the only one yet.
A process of Raylog has one server per name; brokers take the configured port, all others the host alone.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import InvalidConfig, did_you_mean

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
NATIVE: Final = "RAYLOG"
PROTOCOLS: Final = (NATIVE,)
DEFAULT: Final = f"{NATIVE}://:0"
"""The node's own address, at the port that the process had before; the first time, any free port."""
FORM: Final = "NAME://HOST:PORT[,...], such as RAYLOG://:9092 (no host = the node's own, port 0 = the one from before)"
_HOST: Final = r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{0,63}"
_ENTRY: Final = re.compile(rf"([A-Za-z][A-Za-z0-9_]*)://(?:\[([0-9A-Fa-f:.]*)\]|({_HOST})):([0-9]{{1,5}})")
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Listener:
    """One entry of `listeners` or `advertised.listeners`.

    An empty host is the node's own address. Port 0 leaves the choice to the process; advertised, it is the port at
    which the process listens.
    """

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        """Return the entry in its written form."""
        return f"{self.name}://{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets, any other host as it is."""
    return f"[{host}]" if ":" in host else host


def parse_listeners(key: str, text: str) -> dict[str, Listener]:
    """Return the entries of the setting ``key`` by name; :data:`NATIVE` is always among them.

    Raises InvalidConfig, which states what is wrong with ``text``.
    """
    found: dict[str, Listener] = {}
    for part in (part.strip() for part in text.split(",")):
        entry = _ENTRY.fullmatch(part)
        if entry is None:
            raise InvalidConfig(f"{key} is {FORM}; {part!r:.200} is not of that form.")
        name, host, port = entry[1].upper(), entry[2] or entry[3] or "", int(entry[4])
        if name not in PROTOCOLS:
            raise InvalidConfig(f"{key}: {did_you_mean('listener', name, PROTOCOLS)} TLS is Ray's (RAY_USE_TLS).")
        if name in found:
            raise InvalidConfig(f"{key} has {name} twice; a process has one listener of each name.")
        if port > _PORT_MAX:
            raise InvalidConfig(f"{key}: {part} has port {port}; ports end at {_PORT_MAX}.")
        if key == ADVERTISED and is_wildcard(host):
            raise InvalidConfig(f"{key}: clients cannot connect to {host}, which stands for all addresses; name one.")
        found[name] = Listener(name, host, port)
    if NATIVE not in found:
        raise InvalidConfig(f"{key} needs an entry {NATIVE}://HOST:PORT: brokers and clients speak it.")
    return found


def is_wildcard(host: str) -> bool:
    """Return whether a host stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach an address; a name counts as reachable from elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Binding:
    """Where one server listens, and where others reach it. Port 0: the one from before, or any that is free."""

    host: str
    port: int
    advertised_host: str
    advertised_port: int
    """0 = the port at which it listens."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether others reach it by another address than the one at which it listens: a name, a NAT, a tunnel."""
        return self.advertised_port not in (0, self.port) or self.advertised_host != self.host


def native_binding(config: Mapping[str, str], own_host: str, *, is_broker: bool) -> Binding:
    """Return where a process on the node ``own_host`` listens; only brokers take the configured ports.

    Raises InvalidConfig when there is no address that clients could use.
    """
    listener = parse_listeners(LISTENERS, config.get(LISTENERS, DEFAULT))[NATIVE]
    advertised = parse_listeners(ADVERTISED, config.get(ADVERTISED, DEFAULT))[NATIVE]
    host = listener.host or own_host
    given = advertised.host or (own_host if is_wildcard(host) else host)
    if is_wildcard(host) and not advertised.host and is_loopback(own_host):
        raise InvalidConfig(
            f"{LISTENERS}={listener} listens on all addresses, and this node knows only {own_host} of itself: set "
            f"{ADVERTISED} to the name or address by which clients reach this machine."
        )
    ports = (listener.port, advertised.port) if is_broker else (0, 0)
    return Binding(host, ports[0], given, ports[1])
