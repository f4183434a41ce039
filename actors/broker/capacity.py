"""How many replicas this machine bears awake, each a process. Read once by a broker's shell, for its registration."""

from __future__ import annotations

import os
from typing import Final

REPLICA_BYTES: Final = 32 << 20
"""Memory of a replica that works, with its part of the page cache's index: 22 MB at rest."""
MEMORY_SHARE: Final = 0.5
"""The rest is for Ray, for its users' work, and for the page cache."""
PER_CORE: Final = 100
"""Each awake replica at rest takes 9 ms of CPU a second (docs/performance.md), so that so many take nearly all."""


def awake_max() -> int:
    """Return the smaller of what the cores and the memory allow, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores * PER_CORE, int(_memory_bytes() * MEMORY_SHARE) // REPLICA_BYTES))


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
