"""Virtual disks below `raylog.storage`: the calls of `raylog.storage.filesystem`, answered by disks.

A path below the mount point of a disk belongs to that disk; every other path and descriptor goes to the operating
system. Descriptors belong to a process: when it ends, its later calls raise PowerLost.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import NamedTuple

from raylog.storage import filesystem
from raylog.storage.batch.compression import Buffer
from raylog.storage.filesystem import Place, Status
from tests.simulation.storage.disk import PowerLost, VirtualDisk, failure
from tests.simulation.storage.nodes import File, Folder, Node

FIRST_DESCRIPTOR = 1_000_000
"""Virtual descriptors begin here, where no real one can be."""


class Process:
    """A process that opens files and can be killed. `running` is the current one."""

    def __init__(self, name: str = "") -> None:
        """Begin alive."""
        self.name = name
        self.alive = True


running: ContextVar[Process | None] = ContextVar("running", default=None)
"""The calling process; None = one that is never killed."""


class _Status(NamedTuple):
    st_mode: int
    st_uid: int
    st_size: int
    st_dev: int
    st_ino: int


class _Open(NamedTuple):
    disk: VirtualDisk
    node: Node
    life: int
    process: Process | None


class VirtualFileSystem:
    """See the module. The methods are those that `filesystem.CALLS` names."""

    def __init__(self) -> None:
        """Begin without a disk."""
        self._disks: dict[str, VirtualDisk] = {}
        self._open: dict[int, _Open] = {}
        self._next = FIRST_DESCRIPTOR
        self._locks: dict[tuple[int, int], int] = {}  # descriptor that holds the lock, by disk and file number

    def mount(self, point: Path, disk: VirtualDisk) -> None:
        """Mount `disk` at `point`, in place of the disk that was there."""
        self._disks[str(point)] = disk
        disk.device = len(self._disks)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Replace the calls of `raylog.storage` while the block runs."""
        with filesystem.bind(self):
            yield

    def kill(self, process: Process) -> None:
        """End a process: its descriptors are closed, its locks free, and its later calls fail. The cache stays."""
        process.alive = False
        for descriptor, held in list(self._open.items()):
            if held.process is process:
                self._forget(descriptor)

    def open_descriptors(self, disk: VirtualDisk) -> int:
        """Number of open descriptors of a disk."""
        return sum(held.disk is disk and held.life == disk.lives for held in self._open.values())

    def _place(self, path: Place) -> tuple[VirtualDisk, PurePath] | None:
        _require_alive()
        text = str(path)
        for point, disk in self._disks.items():
            if text.startswith(point) and text[len(point) : len(point) + 1] in ("", "/"):
                return disk, PurePath(text[len(point) + 1 :])
        return None

    def _held(self, fd: int) -> _Open:
        _require_alive()
        held = self._open.get(fd)
        if held is None:
            raise failure(errno.EBADF)
        if held.life != held.disk.lives:
            raise PowerLost
        return held

    def _file(self, fd: int) -> tuple[VirtualDisk, File]:
        held = self._held(fd)
        if isinstance(held.node, Folder):
            raise failure(errno.EISDIR)
        return held.disk, held.node

    def _forget(self, fd: int) -> None:
        held = self._open.pop(fd)
        if held.life == held.disk.lives:
            held.disk.close(held.node)
        for key, holder in list(self._locks.items()):
            if holder == fd:
                del self._locks[key]

    # --- the calls -------------------------------------------------------------------------------------------------

    def open(self, path: Place, flags: int, mode: int = 0o777) -> int:
        found = self._place(path)
        if found is None:
            return os.open(path, flags, mode)
        disk, inner = found
        node = disk.open(inner, flags, mode)
        self._next += 1
        self._open[self._next] = _Open(disk, node, disk.lives, running.get())
        return self._next

    def close(self, fd: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            os.close(fd)
        elif fd in self._open:
            self._forget(fd)
        else:
            _require_alive()
            raise failure(errno.EBADF)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if fd < FIRST_DESCRIPTOR:
            return os.pread(fd, size, position)
        disk, file = self._file(fd)
        return disk.read(file, size, position)

    def pwrite(self, fd: int, data: Buffer, position: int) -> int:
        if fd < FIRST_DESCRIPTOR:
            return os.pwrite(fd, data, position)
        disk, file = self._file(fd)
        return disk.write(file, bytes(data), position)

    def ftruncate(self, fd: int, size: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            return os.ftruncate(fd, size)
        disk, file = self._file(fd)
        return disk.resize(file, size)

    def fsync(self, fd: int) -> None:
        return os.fsync(fd) if fd < FIRST_DESCRIPTOR else self._sync(fd, "fsync")

    def fdatasync(self, fd: int) -> None:
        return os.fdatasync(fd) if fd < FIRST_DESCRIPTOR else self._sync(fd, "fdatasync")

    def _sync(self, fd: int, call: str) -> None:
        held = self._held(fd)
        held.disk.sync(held.node, call)
        _require_alive()

    def posix_fadvise(self, fd: int, position: int, length: int, advice: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            return os.posix_fadvise(fd, position, length, advice)
        held = self._held(fd)
        return held.disk.advise(held.node, position, length, advice)

    def flock(self, fd: int, operation: int) -> None:
        if fd < FIRST_DESCRIPTOR:
            return fcntl.flock(fd, operation)
        held = self._held(fd)
        key = (id(held.disk), held.node.number)
        holder = self._locks.get(key)
        if operation & fcntl.LOCK_UN:
            if holder == fd:
                del self._locks[key]
        elif holder is not None and holder != fd and self._open[holder].life == held.disk.lives:
            raise failure(errno.EAGAIN)  # a simulated process cannot wait here
        else:
            self._locks[key] = fd
        return None

    def fstat(self, fd: int) -> Status:
        if fd < FIRST_DESCRIPTOR:
            return os.fstat(fd)
        held = self._held(fd)
        held.disk.require()
        return _status(held.disk, held.node)

    def stat(self, path: Place) -> Status:
        found = self._place(path)
        if found is None:
            return os.stat(path)
        disk, inner = found
        disk.require()
        return _status(disk, disk.find(inner))

    def chmod(self, path: Place, mode: int) -> None:
        found = self._place(path)
        if found is None:
            return os.chmod(path, mode)
        disk, inner = found
        node = disk.find(inner)
        node.mode = node.mode & ~0o777 | mode
        return None

    def replace(self, source: Place, target: Place) -> None:
        first, second = self._place(source), self._place(target)
        if first is None or second is None:
            return os.replace(source, target)
        return first[0].replace(first[1], second[1])

    def unlink(self, path: Place) -> None:
        found = self._place(path)
        return os.unlink(path) if found is None else found[0].unlink(found[1])

    def mkdir(self, path: Place, mode: int) -> None:
        found = self._place(path)
        return os.mkdir(path, mode) if found is None else found[0].mkdir(found[1], mode)

    def rmdir(self, path: Place) -> None:
        found = self._place(path)
        return os.rmdir(path) if found is None else found[0].rmdir(found[1])

    def listdir(self, path: Place) -> list[str]:
        found = self._place(path)
        return os.listdir(path) if found is None else found[0].listdir(found[1])


def _require_alive() -> None:
    process = running.get()
    if process is not None and not process.alive:
        raise PowerLost


def _status(disk: VirtualDisk, node: Node) -> Status:
    size = len(node.content) if isinstance(node, File) else 0
    return _Status(node.mode, os.geteuid(), size, disk.device, node.number)
