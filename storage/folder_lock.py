"""An exclusive lock on a folder, held by the process that writes to it.

Taken by the broker for its data directory, by replicas for theirs, and before a folder is removed. Ray may run two
processes of one actor for a while (a dying one and its successor). The kernel releases the lock when its holder exits,
so a successor waits no longer than that, and a stale file blocks no process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import sys
import time
from pathlib import Path
from typing import Final

from raylog.storage import filesystem
from raylog.storage.errors import DirectoryInUse, from_os_error
from raylog.storage.files import make_folder, read_text, remove

LOCK_WAIT_S: Final = 10.0
LOCK_RETRY_S: Final = 0.02
NAME_BYTES_MAX: Final = 255
"""Longest file name that Linux file systems take."""


def lock_path(folder: Path) -> Path:
    """The lock's file, `.<folder>.lock` beside the folder; a digest stands for a name that would be too long.

    No partition folder has such a name: these end in a number. Pure.
    """
    name = f".{folder.name}.lock"
    if len(name.encode()) > NAME_BYTES_MAX:
        name = f".{hashlib.sha256(folder.name.encode()).hexdigest()}.lock"
    return folder.parent / name


class FolderLock:
    """Keeps two processes of one actor from writing to the same files. Blocks: acquire it in a thread."""

    def __init__(self, folder: Path, file: Path | None = None, *, wait_s: float = LOCK_WAIT_S) -> None:
        """Wait until the former holder has released it. `file` is the lock's file, by default that of `lock_path`.

        Raises DirectoryInUse, which names the holder, after `wait_s` seconds; StorageIoError, DiskFull.
        """
        self.path = file or lock_path(folder)
        self._descriptor = -1
        deadline = time.monotonic() + wait_s
        try:
            make_folder(self.path.parent)
            while not self._try():
                if time.monotonic() >= deadline:
                    raise self._in_use(folder)
                time.sleep(LOCK_RETRY_S)
        except OSError as error:
            raise from_os_error(f"lock {folder}", error) from error

    def release(self, *, for_good: bool = False) -> None:
        """Release the lock; `for_good` removes its file too, with the folder. Idempotent."""
        if self._descriptor < 0:
            return
        if for_good:
            remove(self.path)
        filesystem.close(self._descriptor)
        self._descriptor = -1

    def _try(self) -> bool:
        descriptor = filesystem.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            filesystem.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._names(descriptor):
                filesystem.ftruncate(descriptor, 0)
                filesystem.pwrite(descriptor, _about_this_process().encode(), 0)
                self._descriptor, descriptor = descriptor, -1
                return True
        except BlockingIOError:
            return False
        finally:
            if descriptor >= 0:
                filesystem.close(descriptor)
        return False

    def _names(self, descriptor: int) -> bool:
        """Whether the path still names the locked file: its last holder may have removed it."""
        try:
            named = filesystem.stat(self.path)
        except FileNotFoundError:
            return False
        locked = filesystem.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)

    def _in_use(self, folder: Path) -> DirectoryInUse:
        holder = parse_properties(read_text(self.path) or "")
        pid = holder.get("pid", "")
        return DirectoryInUse(
            folder,
            int(pid) if pid.isdecimal() else -1,
            holder.get("command", "unknown"),
            holder.get("since", "an unknown time"),
            holder.get("host", "an unknown host"),
        )


def _about_this_process() -> str:
    command = " ".join(sys.argv)[:400].replace("\n", " ") or sys.executable
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return f"pid={os.getpid()}\ncommand={command}\nhost={socket.gethostname()}\nsince={since}\n"


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of a file with a `key=value` a line; `#` begins a comment. Pure."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}
