"""The page cache of Linux, as far as a log can be deceived by it: what a failed sync leaves behind.

Segment files are real; beside each stands what its disk holds. A write makes pages dirty. A sync writes the dirty pages
to the disk, or fails: then the pages count as clean, are reported once, and still show what was written (ext4 and xfs
since Linux 4.13). Only dropping clean pages, or the loss of power, shows what the disk has.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raylog.storage import filesystem

PAGE_BYTES = 4096


class _File:
    def __init__(self) -> None:
        self.disk = bytearray()
        self.dirty: set[int] = set()
        self.unreported = False


class PageCache:
    """Stands between `raylog.storage` and the kernel for files that end in `.log`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Begin with a cold cache; `patch` undoes it."""
        self.failing_syncs = 0
        """So many syncs fail from now on."""
        self._files: dict[tuple[int, int], _File] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        self._real_write, self._real_truncate = os.pwrite, os.ftruncate
        replaced: dict[str, Callable[..., object]] = {
            "pwrite": self._write,
            "ftruncate": self._truncate,
            "fdatasync": self._sync,
            "posix_fadvise": self._advise,
        }
        for name, function in replaced.items():
            patch.setattr(filesystem, name, function)

    def lose_power(self) -> None:
        """Let each file hold what the disk holds. No log may be open."""
        for key, file in self._files.items():
            path = self._paths[key]
            if path.exists() and _key(path.stat()) == key:
                path.write_bytes(file.disk)
            file.dirty.clear()
            file.unreported = False

    def _of(self, fd: int) -> _File | None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.suffix != ".log":
            return None
        key = _key(os.fstat(fd))
        self._paths[key] = path
        return self._files.setdefault(key, _File())

    def _write(self, fd: int, data: bytes, position: int) -> int:
        file = self._of(fd)
        if file is not None and len(data):
            file.dirty.update(range(position // PAGE_BYTES, (position + len(data) - 1) // PAGE_BYTES + 1))
        return self._real_write(fd, data, position)

    def _truncate(self, fd: int, length: int) -> None:
        file = self._of(fd)
        self._real_truncate(fd, length)
        if file is not None:
            del file.disk[length:]
            file.dirty = {page for page in file.dirty if page * PAGE_BYTES < length}

    def _sync(self, fd: int) -> None:
        file = self._of(fd)
        if file is None:
            return
        if file.dirty and self.failing_syncs:
            self.failing_syncs -= 1
            file.dirty.clear()
            file.unreported = True
        if file.unreported:
            file.unreported = False
            raise OSError(errno.EIO, "Input/output error")
        size = os.fstat(fd).st_size
        for page in sorted(file.dirty):
            self._write_back(file, os.pread(fd, PAGE_BYTES, page * PAGE_BYTES), page * PAGE_BYTES)
        file.dirty.clear()
        self._write_back(file, b"", size)

    @staticmethod
    def _write_back(file: _File, data: bytes, position: int) -> None:
        file.disk.extend(bytes(max(0, position - len(file.disk))))
        file.disk[position : position + len(data)] = data

    def _advise(self, fd: int, offset: int, length: int, advice: int) -> None:
        file = self._of(fd)
        if file is None or advice != os.POSIX_FADV_DONTNEED:
            return
        size = os.fstat(fd).st_size
        end = size if length == 0 else offset + length
        for page in range(-(-offset // PAGE_BYTES), -(-end // PAGE_BYTES)):
            if page not in file.dirty:
                first, last = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, size)
                held = bytes(file.disk[first:last])
                self._real_write(fd, held + bytes(last - first - len(held)), first)


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
