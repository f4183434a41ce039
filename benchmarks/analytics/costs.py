"""Time and processor time of a measured phase whose work is in this process and in its children. May touch: /proc."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from benchmarks.loads import Meter
from benchmarks.peers.processes import cpu_seconds


def own_tree() -> list[int]:
    """This process and its descendants: a JVM, and the Python processes of Spark or Ray."""
    here = psutil.Process()
    return [here.pid, *(child.pid for child in here.children(recursive=True))]


class Phase(Meter):
    """Begins when it is made. Processes that begin later count from their own start."""

    def __init__(self, server_pids: Sequence[int] = ()) -> None:
        super().__init__(server_pids, lambda: cpu_seconds(own_tree()))
