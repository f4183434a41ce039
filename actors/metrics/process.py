"""Measures what this process uses, and how full its disk is. Reads ``/proc`` and the file system."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from raylog.core.metrics.usage import Usage
from raylog.rpc import Connection, RpcServer

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def usage_of(server: RpcServer) -> Usage:
    """Return what this process uses, and the connections and refusals of its server."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures: dict[str, float] = {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "connections": len(server.connections),
        "unsent_bytes": unsent_bytes(server.connections),
    }
    try:
        figures["resident_memory_bytes"] = int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE_BYTES
        figures["open_fds"] = len(os.listdir("/proc/self/fd")) - 1  # without the descriptor of the listing itself
    except OSError:  # no /proc on this system: these numbers are left out
        pass
    return Usage(figures=figures, refusals=dict(server.refusals))


def unsent_bytes(connections: Iterable[Connection]) -> int:
    """Return the bytes in the send queues of these connections."""
    return sum(connection.statistics()["unsent_bytes"] for connection in connections)


def disk_figures(folder: Path) -> tuple[int, int]:
    """Return free and total bytes of the file system of a folder. Raises OSError.

    Free is what an unprivileged process may still write.
    """
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def damaged_count(folder: Path) -> int:
    """Return how many damaged logs are set aside in a data directory. Raises OSError."""
    try:
        return len(os.listdir(folder / ".damaged"))
    except FileNotFoundError:
        return 0
