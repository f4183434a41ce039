"""Detects a Ray cluster on this machine that a process could join; has the options to start one. Does not import Ray.

Ray writes the address of the last cluster to a file that outlives the cluster; joining a dead one would hang for
minutes. Used by ``discovery`` and by ``raylog.launch.cluster``. May touch: the environment, that file, and one TCP
connection.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from raylog.base.errors import NoClusterFound

ENV_ADDRESS = "RAY_ADDRESS"
ADDRESS_FILE = "ray_current_cluster"
PROBE_TIMEOUT_S = 1.0
NICENESS_VARIABLE = "RAY_worker_niceness"
WORKER_NICENESS = 0
"""Niceness of the worker processes of a Ray that we start. Ray's own default, 15, is meant for compute tasks. With it a
server could get as little as a thirtieth of a processor that its own clients keep busy."""


def require_ray_address(address: str, source: str) -> str:
    """Return the address if Ray can parse it; otherwise raise NoClusterFound, which names the address's source."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
    if address in ("auto", "local") or "://" in address or (host and is_port):
        return address
    raise NoClusterFound(f"{source} is no HOST:PORT of a Ray cluster, such as 127.0.0.1:6379: {address!r}.")


def running_ray_address() -> str | None:
    """The address for ``ray.init``: ``RAY_ADDRESS``, or "auto" if the last cluster started here answers; else None.

    "auto" and not that cluster's own address, because Ray presents the user's token only with "auto", and refuses
    clients without it. Raises NoClusterFound for a malformed ``RAY_ADDRESS``.
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
    """The arguments for ``ray.init`` to start a private Ray, which ends with the process."""
    niceness = os.environ.get(NICENESS_VARIABLE, "")
    return {
        "address": "local",
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "_system_config": {"worker_niceness": int(niceness) if niceness.isdecimal() else WORKER_NICENESS},
    }
