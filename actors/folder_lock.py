"""An exclusive lock beside a folder, held by the process that writes to it.

Ray may run two processes of one actor for a while (a dying one and its successor). The kernel drops the lock with its
holder, so a successor waits no longer than that. Taken by replicas, the controller, and whoever removes a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import Final

from raylog.core.errors import DataDirectoryError

LOCK_WAIT_S: Final = 10.0
LOCK_RETRY_S: Final = 0.02


NAME_BYTES_MAX: Final = 255
"""Longest file name that Linux file systems take."""


def lock_path(folder: Path) -> Path:
    """Return the lock's file, ``.<folder>.lock`` beside the folder; a digest stands for a name that would be too long.

    No partition folder has such a name: these end in a number. Pure.
    """
    name = f".{folder.name}.lock"
    if len(name.encode()) > NAME_BYTES_MAX:
        name = f".{hashlib.sha256(folder.name.encode()).hexdigest()}.lock"
    return folder.parent / name


class FolderLock:
    """Two lives of one actor never write to the same files. Blocks while it waits: take it in a thread."""

    def __init__(self, folder: Path, *, wait_s: float = LOCK_WAIT_S) -> None:
        """Wait until the former holder has let go; raises :class:`DataDirectoryError` after ``wait_s`` seconds."""
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = lock_path(folder)
        self._descriptor = -1
        deadline = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() > deadline:
                raise DataDirectoryError(
                    f"Another process{self._holder()} still holds {folder}; end it, and this one goes on by itself."
                )
            time.sleep(LOCK_RETRY_S)

    def release(self, *, for_good: bool = False) -> None:
        """Let the next one in; ``for_good`` removes the lock's file too, with the folder. Twice is harmless."""
        if self._descriptor < 0:
            return
        if for_good:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _try(self) -> bool:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._names(descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                self._descriptor, descriptor = descriptor, -1
                return True
        except BlockingIOError:
            return False
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return False

    def _names(self, descriptor: int) -> bool:
        """Tell whether the path still means the file that was locked: its last holder may have removed it."""
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        locked = os.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)

    def _holder(self) -> str:
        try:
            pid = self.path.read_text(encoding="ascii").strip()
        except OSError:
            return ""
        return f" (pid {pid})" if pid else ""
