"""Detects a Ray cluster on this machine that a process could join, and how to start one. Does not import Ray.

Ray notes the address of the last cluster in a file that outlives it; joining a dead one would hang for minutes. Used by
``discovery`` and by ``raylog.launch.cluster``. May touch: the environment, that file, and one TCP connection.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from raylog.core.errors import NoClusterFound

ENV_ADDRESS = "RAY_ADDRESS"
ADDRESS_FILE = "ray_current_cluster"
PROBE_TIMEOUT_S = 1.0
NICENESS_VARIABLE = "RAY_worker_niceness"
WORKER_NICENESS = 0
"""Niceness of the processes of a Ray that we start. Ray's own default, 15, is meant for compute tasks; a server with it
can be left a thirtieth of a processor that its own clients keep busy."""


def require_ray_address(address: str, source: str) -> str:
    """Return the address if Ray can read it; raises NoClusterFound, with where it comes from, if it cannot."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
    if address in ("auto", "local") or "://" in address or (host and is_port):
        return address
    raise NoClusterFound(f"{source} is no HOST:PORT of a Ray cluster, such as 127.0.0.1:6379: {address!r}.")


def running_ray_address() -> str | None:
    """Return what to give ``ray.init`` to join: ``RAY_ADDRESS``, or "auto" when the last cluster started here answers.

    Not that cluster's own address: Ray presents the user's token only with "auto", and refuses clients without it.
    Raises NoClusterFound for a ``RAY_ADDRESS`` that is none.
    """
    address = os.environ.get(ENV_ADDRESS)
    if address:
        return require_ray_address(address, ENV_ADDRESS)
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"
    try:
        noted = (folder / ADDRESS_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    host, _, port = noted.rpartition(":")
    if not port.isdecimal():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S).close()
    except OSError:
        return None
    return "auto"


def own_ray_options() -> dict[str, Any]:
    """Return what to give ``ray.init`` to start a private Ray, which ends with the process."""
    niceness = os.environ.get(NICENESS_VARIABLE, "")
    return {
        "address": "local",
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "_system_config": {"worker_niceness": int(niceness) if niceness.isdecimal() else WORKER_NICENESS},
    }
