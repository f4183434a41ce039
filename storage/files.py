"""The few file operations that everything durable here is made of.

Called by the segment, the log, its checkpoints and the data directory. Each helper turns an OSError into the storage
error that says what to do, and says in its docstring what is durable when it returns.
"""

from __future__ import annotations

import os
from pathlib import Path

from .compression import Buffer
from .descriptors import open_file
from .errors import NotDurable, StorageError, from_os_error

TEMPORARY = ".tmp"


def private_folder(path: Path, *, tighten: bool = True) -> bool:
    """Make a folder that only its owner may enter, whatever the umask; True where others could enter it before.

    A folder of ours that is there already is tightened, unless `tighten` is False. Raises StorageIoError, DiskFull.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        loose = bool(found.st_mode & 0o077)
        if loose and tighten and found.st_uid == os.geteuid():
            path.chmod(found.st_mode & 0o700)
    except OSError as error:
        raise from_os_error(f"create {path}", error) from error
    return loose


def sync_folder(folder: Path) -> None:
    """Make names created, renamed or removed in `folder` durable."""
    try:
        fd = open_file(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise from_os_error(f"sync the folder {folder}", error) from error


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data`, so that a reader sees the old or the new file, whole.

    With `durable` the new file is on disk when this returns. On an error the old file is still there, unless it is
    NotDurable: then the new one is, and a loss of power may bring the old one back.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_at(fd, data, 0)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise from_os_error(f"write {path}", error) from error
    if durable:
        try:
            sync_folder(path.parent)
        except StorageError as error:
            raise NotDurable(path, error) from error


def write_at(fd: int, data: Buffer, position: int) -> int:
    """Write `data` at `position`; returns the bytes written, which are all of them.

    One system call unless the kernel takes less. Raises the plain OSError: only the caller knows what to undo.
    """
    total = len(data)
    written = os.pwrite(fd, data, position)
    while written < total:
        written += os.pwrite(fd, memoryview(data)[written:], position + written)  # a full disk shows here
    return total


def read_at(fd: int, size: int, position: int) -> bytes:
    """Up to `size` bytes at `position`; fewer only at the end of the file."""
    data = os.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    missing = size - len(data)
    while missing:
        data = os.pread(fd, missing, position + size - missing)
        if not data:
            break
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def read_text(path: Path) -> str | None:
    """The text of a small file, or None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(f"read {path}", error) from error


def remove(path: Path) -> None:
    """Remove a file that may be gone already. Durable after `sync_folder`."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(f"remove {path}", error) from error
