"""How a replica's process keeps its memory. Called once in each process of a replica; touches the C library alone."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 4 << 20
"""What may lie free at the end of the heap, in every replica."""
MAPPED_FROM_BYTES: Final = 2 << 20
"""Larger pieces go back to the system at once, and are rare."""


def keep_freed_memory() -> None:
    """Keep a few megabytes of freed memory for the next batch.

    Otherwise the C library gives the pages of every batch back to the system and takes them anew for the next, a fault
    and a cleared page for each 4 KiB: measured, more than a third of a leader's time. Does nothing without glibc.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        set_option(_M_TRIM_THRESHOLD, KEPT_BYTES)
