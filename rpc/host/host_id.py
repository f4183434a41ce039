"""Identifies the machine, for two ends that have to know whether they can open the same files.

Used by clients that read segment files themselves and by the replicas that locate them. May touch: /proc.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def machine_number() -> int | None:
    """A number (63 bits) shared by all processes under one running kernel, and no others; None if unknown.

    Containers on one machine share it and may still see different files: compare device and inode of the opened file.
    """
    try:
        boot_id = _BOOT_ID.read_bytes()
    except OSError:
        return None
    return int.from_bytes(hashlib.sha256(boot_id).digest()[:8], "big") >> 1
