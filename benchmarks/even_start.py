"""Equal conditions before every measurement: no dirty pages, and memory that is as close as for the others.

A virtual machine that returns freed memory to its host has to request it again, which makes the first touch of a page
several times as expensive. A measurement that runs while the page cache grows into such memory pays for that, and later
ones do not. So the pages of earlier rounds' data leave the cache, where they are no longer read, and a fixed amount of
memory is touched and freed: the kernel hands it out next. Used by the harness.
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
    """Write all dirty pages to the disk, or the next measurement pays for them."""
    os.sync()


def warm_memory(folders: Iterable[Path], size: int) -> None:
    """Drop the folders' log files from the page cache, then touch and free so many bytes of memory."""
    for folder in folders:
        forget_pages(folder)
    if size:
        touch(size)


def touch(size: int) -> None:
    """Touch so much memory page by page, and free it."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
        try:
            region.madvise(POPULATE_WRITE)
        except OSError:  # an older kernel
            for position in range(0, size, PAGE):
                region[position] = 1
