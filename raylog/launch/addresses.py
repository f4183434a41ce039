"""Checks of `listeners` and `advertised.listeners` before and after a cluster's start. Used by ``launch.cluster``."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.base.errors import StartFailed
from raylog.core.configuration.listeners import ADVERTISED, LISTENERS, Binding, bracketed, native_binding
from raylog.launch.placement import BrokerPlacement
from raylog.launch.plaintext import check_hosts

REACH_TIMEOUT_S: Final = 5.0


def check_listeners(
    settings: Mapping[str, str], placements: Sequence[BrokerPlacement], *, allow_plaintext: bool
) -> None:
    """Raise, before anything is started, where brokers could not listen with these settings.

    Raises :class:`StartFailed` for brokers of one machine with the same port, for a port that is taken, for network
    addresses without TLS, and for advertised addresses at which the broker cannot be reached; :class:`InvalidConfig`
    where there is no address to give to clients.
    """
    from raylog.actors.listening import KEPT_FILE, kept_values

    taken: dict[tuple[str, int], list[str]] = {}
    for placement in placements:
        before = {} if placement.broker is None else kept_values(placement.folder / KEPT_FILE)
        binding = native_binding({**before, **settings}, placement.host, is_broker=True)
        check_hosts([binding.host], allow_plaintext)
        if placement.broker is not None and (binding.port or binding.is_elsewhere):
            _try_out(binding, f"broker {placement.broker}")
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


def _try_out(binding: Binding, name: str) -> None:
    """Listen like an embedded broker, and connect as its clients will. Raises StartFailed where that fails.

    Without this check, the failure would show up as a controller that reaches no voter within a minute.
    """
    from raylog.actors.listening import why_not

    place = f"{bracketed(binding.host)}:{binding.port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(binding.host, binding.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
            if binding.is_elsewhere:
                _reach(binding, int(probe.getsockname()[1]), name)
    except OSError as error:
        raise StartFailed(f"{LISTENERS}: {name} cannot listen at {place}: {why_not(error, binding.port)}") from None


def _reach(binding: Binding, port: int, name: str) -> None:
    """Connect to the advertised address while a probe listens at `port`. Raises StartFailed where that fails."""
    host = binding.advertised_host
    if binding.advertised_port and not binding.port:
        raise StartFailed(
            f"{ADVERTISED} names port {binding.advertised_port} of {host}, which has to lead to one port of {name}: "
            f"fix that as well, with {LISTENERS}=RAYLOG://:PORT."
        )
    try:
        socket.create_connection((host, binding.advertised_port or port), REACH_TIMEOUT_S).close()
    except OSError as error:
        raise StartFailed(_not_reached(name, host, binding.advertised_port or port, error)) from None


def _not_reached(name: str, host: str, port: int, error: OSError) -> str:
    return (
        f"{ADVERTISED}: {name} is not reached at {bracketed(host)}:{port} ({error}). Its clients and the other brokers "
        "are given this address: correct it, or make it lead to the broker from here, too."
    )


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
            name = f"broker {broker['broker']}"
            raise StartFailed(_not_reached(name, broker["host"], broker["port"], error)) from None
