"""Time and processor time of a measured phase whose work is in this process and in its children. May touch: /proc."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from benchmarks.job import Outcome
from benchmarks.peers.processes import cpu_seconds


def own_tree() -> list[int]:
    """This process and its descendants: a JVM, and the Python processes of Spark or Ray."""
    here = psutil.Process()
    return [here.pid, *(child.pid for child in here.children(recursive=True))]


class Phase:
    """Begins when it is made. Processes that begin later count from their own start."""

    def __init__(self, server_pids: Sequence[int] = ()) -> None:
        self._pids = server_pids
        self._server_s = cpu_seconds(server_pids)
        self._client_s = cpu_seconds(own_tree())
        self._began_s = time.monotonic()

    def read(self, records: int, size: int) -> Outcome:
        """Time and processor time so far, for so many records and bytes."""
        seconds = time.monotonic() - self._began_s
        return {
            "records": records,
            "bytes": size,
            "seconds": seconds,
            "rate": records / seconds,
            "client_cpu_s": cpu_seconds(own_tree()) - self._client_s,
            "server_cpu_s": cpu_seconds(self._pids) - self._server_s,
        }
