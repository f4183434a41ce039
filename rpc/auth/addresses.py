"""The addresses at which a server may be reached, as the handshake compares them.

A client puts the address and port that its socket is connected to into its proof; the server accepts those of its own
end of the same connection. Names are not compared, so a host may have several, and a server that listens on 0.0.0.0
knows each address by which it is reached. A process that forwards the bytes in between has another address, and is
refused. An intended NAT or tunnel is listed in `RAYLOG_ADVERTISED_ADDRESSES`. Used by `connection.py` and `server.py`.
May touch: the environment.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

ENV_ADVERTISED = "RAYLOG_ADVERTISED_ADDRESSES"


def canonical(name: object) -> str:
    """`host:port` of a socket's address, the same at both ends of a connection; "" for anything but an IP address."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = str(name[0]), int(name[1])
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return _text(mapped or address, port)


def _text(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


@dataclass(frozen=True, slots=True)
class Advertised:
    """Addresses of this server's own forwarders: with one port, or with the port that it listens on."""

    hosts: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Advertised:
        """Read `ADDRESS[:PORT],...` from the environment; raises ValueError for anything but an IP address."""
        hosts, places = set(), set()
        for part in (part.strip() for part in environ.get(ENV_ADVERTISED, "").split(",")):
            if not part:
                continue
            try:
                hosts.add(str(ipaddress.ip_address(part.strip("[]"))))
                continue
            except ValueError:
                host, _, port = part.rpartition(":")
            place = canonical((host.strip("[]"), int(port))) if port.isdecimal() else ""
            if not place:
                raise ValueError(
                    f"{ENV_ADVERTISED} takes IP addresses with or without a port, such as 203.0.113.7 or "
                    f"203.0.113.7:9092, separated by commas; {part!r} is none."
                )
            places.add(place)
        return cls(frozenset(hosts), frozenset(places))

    def and_also(self, host: str, port: int) -> Advertised:
        """These, and another address of this server; port 0: with the port that it listens on."""
        if port:
            return replace(self, places=self.places | {canonical((host, port))})
        return replace(self, hosts=self.hosts | {str(ipaddress.ip_address(host))})

    def accepts(self, dialled: str, local: str) -> bool:
        """Whether a client connected to `dialled` has reached the server whose end of the connection is `local`."""
        if dialled == local or dialled in self.places:
            return True
        host, _, port = dialled.rpartition(":")
        return host.strip("[]") in self.hosts and port == local.rpartition(":")[2]
