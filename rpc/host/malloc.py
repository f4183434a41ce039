"""Keeps malloc from returning the memory of frames to the system. Called once by each client and each replica."""

from __future__ import annotations


def keep_freed_memory(up_to_bytes: int) -> None:
    """Make the C library keep up to about `up_to_bytes` of freed memory for the next batch.

    Else it may, depending on the heap layout, return the pages of every batch and take new ones for the next: a fault
    and a cleared page for each 4 KiB, which costs more than all processing of the bytes. The glibc adapts by itself: it
    keeps twice the size of the largest block that was freed (up to 32 MiB). So one is allocated and freed unused, at no
    cost.
    """
    bytes(up_to_bytes // 2)
