"""Is there a Ray cluster on this machine that a process could join? Answered without importing or starting Ray.

Ray notes the address of the last cluster in a file that outlives it; joining a dead one would hang for minutes. Used by
``discovery`` and by ``raylog.cluster``. May touch: the environment, that file, and one TCP connection.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

ADDRESS_FILE = "ray_current_cluster"
PROBE_TIMEOUT_S = 1.0


def running_ray_address() -> str | None:
    """Return what to give ``ray.init`` to join: ``RAY_ADDRESS``, or "auto" when the last cluster started here answers.

    Not that cluster's own address: only with "auto" does Ray show it the user's token, without which it refuses us.
    """
    told = os.environ.get("RAY_ADDRESS")
    if told:
        return told
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
