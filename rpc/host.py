"""What a process takes from its machine: descriptors, options of sockets, freed memory, and the machine's identity.

May touch: this process's resource limits, a socket, /proc.
"""

from __future__ import annotations

import hashlib
import resource
import socket
from functools import cache
from pathlib import Path

MOST_DESCRIPTORS = 1_048_576
"""Upper bound for the soft limit: some systems allow billions, and programs that iterate over all of them hang."""
_SHARE_OF_CONNECTIONS = 0.5
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, `MOST_DESCRIPTORS` at most; return the soft limit in force.

    Never lowers it. A system that refuses leaves the limit as it was.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = MOST_DESCRIPTORS if hard == unlimited else min(hard, MOST_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a container may forbid what the hard limit promises
            return soft
        soft = wanted
    return MOST_DESCRIPTORS if soft == unlimited else soft


def connections_within(descriptors: int, max_connections: int) -> int:
    """How many connections a server accepts in a process with this limit of open files.

    The other half stays for segments, indexes and the process's own connections: accept() never takes the descriptor
    that an append or a sync needs.
    """
    return max(1, min(max_connections, int(descriptors * _SHARE_OF_CONNECTIONS)))


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


def keep_freed_memory(up_to_bytes: int) -> None:
    """Make the C library keep up to about `up_to_bytes` of freed memory for the next batch; once a client or replica.

    Else it may, depending on the heap layout, return the pages of every batch and take new ones for the next: a fault
    and a cleared page for each 4 KiB, which costs more than all processing of the bytes. The glibc adapts by itself: it
    keeps twice the size of the largest block that was freed (up to 32 MiB). So one is allocated and freed unused, at no
    cost.
    """
    bytes(up_to_bytes // 2)


@cache
def machine_number() -> int | None:
    """A number (63 bits) shared by all processes under one running kernel, and no others; None if unknown.

    For two ends that have to know whether they can open the same files: clients that read segment files themselves, and
    the replicas that locate them. Containers on one machine share it and may still see different files: compare device
    and inode of the opened file.
    """
    try:
        boot_id = _BOOT_ID.read_bytes()
    except OSError:
        return None
    return int.from_bytes(hashlib.sha256(boot_id).digest()[:8], "big") >> 1
