"""The options of a connection's socket. Called by `Connection`; may touch: that socket."""

from __future__ import annotations

import socket


def configure_socket(sock: socket.socket | None, dead_peer_timeout_s: float) -> None:
    """No delay for small frames; a peer that vanished silently is detected within `dead_peer_timeout_s`."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    probe_s = max(1, int(dead_peer_timeout_s / 3))
    options = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", probe_s),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", probe_s),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 2),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(dead_peer_timeout_s * 1000)),
    ]
    for level, name, value in options:
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(level, getattr(socket, name), value)
