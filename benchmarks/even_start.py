"""How every measurement begins: with nothing left to write, and with memory that is as near as it was for the others.

A virtual machine that gives freed memory back to its host has to ask for it again, which makes the first touch of a
page several times as dear. Whoever is measured while the page cache grows into such memory pays for that, and whoever
comes later does not. So the pages of what earlier rounds have written leave the cache, where nobody will read them, and
a fixed amount of memory is touched and freed: it is what the kernel hands out next. Used by the harness.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from benchmarks.peers.processes import forget_pages

POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14 and newer, which Python's mmap does not name: touch all pages, in the kernel."""
PAGE = 4096


def write_out() -> None:
    """Have everything written to the disk, or whoever is measured next pays for what was written before."""
    os.sync()


def warm_memory(folders: Iterable[Path], size: int) -> None:
    """Have the kernel forget the pages of the folders' log files, then touch and free so many bytes of memory."""
    for folder in folders:
        forget_pages(folder)
    if size:
        touch(size)


def touch(size: int) -> None:
    """Touch each page of so much memory, and free it."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
        try:
            region.madvise(POPULATE_WRITE)
        except OSError:  # an older kernel
            for position in range(0, size, PAGE):
                region[position] = 1
