"""Stops all processes of one checkout while the other works: what a cluster costs at rest is no part of a pair.

Linux. A turn has to be shorter than the session timeouts of the cluster that is stopped.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop this process and all below it until the block ends; what its broker has stopped already stays so."""
    stopped = []
    for each in descendants(pid):
        with suppress(OSError):  # it has just ended
            if _status(each)[0] != "T":
                os.kill(each, signal.SIGSTOP)
                stopped.append(each)
    try:
        yield
    finally:
        for each in stopped:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def descendants(pid: int) -> list[int]:
    """Return the process and all below it, each parent before its children."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                children[int(_status(int(entry.name))[1])].append(int(entry.name))
    found = [pid]
    for each in found:
        found.extend(children[each])
    return found


def _status(pid: int) -> list[str]:
    """Return the state of a process, its parent, and more (`man proc_pid_stat`, from its third field on)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
