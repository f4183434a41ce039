"""Checks of `listeners` and `advertised.listeners` around a start of a cluster. Used by ``raylog.launch.cluster``."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.core.configuration.listeners import ADVERTISED, LISTENERS, bracketed, native_binding
from raylog.core.errors import StartFailed
from raylog.launch.placement import BrokerPlacement
from raylog.launch.plaintext import check_hosts

REACH_TIMEOUT_S: Final = 5.0


def check_listeners(
    settings: Mapping[str, str], placements: Sequence[BrokerPlacement], *, allow_plaintext: bool
) -> None:
    """Raise before anything is started where brokers could not listen like this.

    Raises :class:`StartFailed` for brokers of one machine with one port, and for addresses of the network without TLS;
    :class:`InvalidConfig` where there is no address to give to clients.
    """
    from raylog.actors.listening import KEPT_FILE, kept_values

    taken: dict[tuple[str, int], list[str]] = {}
    for placement in placements:
        before = {} if placement.broker is None else kept_values(placement.folder / KEPT_FILE)
        binding = native_binding({**before, **settings}, placement.host, is_broker=True)
        check_hosts([binding.host], allow_plaintext)
        if binding.port and placement.broker is not None:
            _require_free(binding.host, binding.port, f"broker {placement.broker}")
        if binding.port:
            named = placement.host if placement.broker is None else f"broker {placement.broker}"
            taken.setdefault((placement.host, binding.port), []).append(named)
    for (host, port), brokers in taken.items():
        if len(brokers) > 1:
            raise StartFailed(
                f"{LISTENERS}: {', '.join(brokers)} run on one machine ({host}), and only one of them can listen at "
                f"port {port}. Give port 0 ({LISTENERS}=RAYLOG://:0): each broker then keeps the port that it has got. "
                "The port is in the file listeners.properties of the broker's directory; to choose it, write it there "
                "while the broker is stopped."
            )


def _require_free(host: str, port: int, name: str) -> None:
    """Raise where an embedded broker could not listen: found by the broker itself it would cost half a minute."""
    from raylog.actors.listening import why_not

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], found[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
            probe.listen()
    except OSError as error:
        place = f"{bracketed(host)}:{port}"
        raise StartFailed(f"{LISTENERS}: {name} cannot listen at {place}: {why_not(error, port)}") from None


def check_advertised(status: Mapping[str, Any]) -> None:
    """Raise :class:`StartFailed` where brokers advertise addresses at which they are not reached from here."""
    if ADVERTISED not in status["config"]:
        return
    for broker in status["brokers"]:
        if not broker["online"]:
            continue
        try:
            socket.create_connection((broker["host"], broker["port"]), REACH_TIMEOUT_S).close()
        except OSError as error:
            place = f"{bracketed(broker['host'])}:{broker['port']}"
            raise StartFailed(
                f"{ADVERTISED}: broker {broker['broker']} is not reached at {place} ({error}). Its clients and the "
                "other brokers are given this address: correct it, or make it lead to the broker from here, too."
            ) from None
