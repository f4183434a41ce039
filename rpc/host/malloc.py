"""Keeps the memory of frames from going back to the system each time. Called once by each client and each replica."""

from __future__ import annotations


def keep_freed_memory(up_to_bytes: int) -> None:
    """Have the C library keep about so much freed memory for the next batch.

    Else it may, depending on how the heap happens to lie, return the pages of every batch and take them anew for the
    next: a fault and a cleared page for each 4 KiB, which costs more than all that is done with the bytes. The glibc
    learns by itself what a process needs: it keeps twice the size of the largest block that was freed (up to 32 MiB).
    So one is freed that was never touched, and costs nothing.
    """
    bytes(up_to_bytes // 2)
