"""What a broker's machine and process offer to replicas. Read by a broker's shell, for its registration.

What follows for the number of replicas is decided in ``core/metadata/capacity.py``. May touch: /sys, the process's
limits.
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
"""Where a container sees its own memory limit, by the version of cgroups."""


def capacity() -> Capacity:
    """Return what there is now. The limit of open files is the one in force: servers raise it when they start."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Capacity(
        memory_bytes=memory_bytes(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        open_files=-1 if soft == resource.RLIM_INFINITY else soft,
        can_doze=may_stop(),
    )


def memory_bytes(limits: Sequence[Path] = CGROUP_LIMITS) -> int:
    """Return the memory of this machine, or what its container may use of it. A limit that cannot be read is none."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in limits:
        try:
            text = file.read_text().strip()
        except OSError:  # another version of cgroups, or none
            continue
        if text.isdecimal():  # "max" = no limit
            found = min(found, int(text))
    return found
