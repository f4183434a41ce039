"""Measures the memory, cores and files that a broker's machine has for replicas. Used by its shell, to register.

``core/metadata/capacity.py`` decides how many replicas that allows. May touch: /sys, the process's limits.
A module of its own, because it alone reads what the operating system allows.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from raylog.actors.dozing.processes import may_stop
from raylog.core.metadata.capacity import Capacity

CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files in which a container sees its memory limit, for cgroups version 2 and 1."""


def capacity() -> Capacity:
    """Return the capacity now. The limit of open files is the soft limit, which servers raise when they start."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Capacity(
        memory_bytes=memory_bytes(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        open_files=-1 if soft == resource.RLIM_INFINITY else soft,
        can_doze=may_stop(),
    )


def memory_bytes(limits: Sequence[Path] = CGROUP_LIMITS) -> int:
    """Return the bytes of memory of this machine, or of its container if that has a limit which can be read."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in limits:
        try:
            text = file.read_text().strip()
        except OSError:  # another version of cgroups, or none
            continue
        if text.isdecimal():  # "max" = no limit
            found = min(found, int(text))
    return found
