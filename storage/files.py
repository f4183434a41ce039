"""The file operations that all durable state here is made of.

Called by the segment, the log, its checkpoints and the data directory. Each helper turns an OSError into a storage
error that names the remedy, and its docstring states what is durable when it returns.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from raylog.base.errors import RaylogError
from raylog.storage import filesystem
from raylog.storage.descriptors import open_file
from raylog.storage.errors import NotDurable, from_os_error

TEMPORARY = ".tmp"


def exists(path: Path) -> bool:
    """Whether a file or folder of this name exists. Raises StorageIoError."""
    return _mode(path) is not None


def is_folder(path: Path) -> bool:
    """Whether a folder of this name exists. Raises StorageIoError."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: Path) -> int | None:
    try:
        return filesystem.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise from_os_error(f"look at {path}", error) from error


def list_files(folder: Path, suffix: str = "") -> list[Path]:
    """The entries of `folder` whose names end in `suffix`, sorted by name. Raises StorageIoError."""
    try:
        return [folder / name for name in sorted(filesystem.listdir(folder)) if name.endswith(suffix)]
    except OSError as error:
        raise from_os_error(f"list {folder}", error) from error


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder and those above it unless they exist. Raises OSError. Durable after `sync_folder` of each."""
    try:
        filesystem.mkdir(path, mode)
    except FileNotFoundError:
        make_folder(path.parent, mode)
        make_folder(path, mode)
    except FileExistsError:
        if not is_folder(path):
            raise


def private_folder(path: Path, *, tighten: bool = True) -> bool:
    """Make a folder that only its owner may enter, under any umask; True where others could enter it before.

    An existing folder of ours is tightened, unless `tighten` is False. Raises StorageIoError, DiskFull.
    """
    try:
        make_folder(path)
        found = filesystem.stat(path)
        loose = bool(found.st_mode & 0o077)
        if loose and tighten and found.st_uid == os.geteuid():
            filesystem.chmod(path, found.st_mode & 0o700)
    except OSError as error:
        raise from_os_error(f"create {path}", error) from error
    return loose


def sync_folder(folder: Path) -> None:
    """Make names created, renamed or removed in `folder` durable."""
    try:
        fd = open_file(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            filesystem.fsync(fd)
        finally:
            filesystem.close(fd)
    except OSError as error:
        raise from_os_error(f"sync the folder {folder}", error) from error


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data`, so that a reader sees the old or the new file, whole.

    With `durable` the new file is on disk when this returns. On an error the old file is still there, except after
    NotDurable: then the new one is, and a loss of power may bring the old one back.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_at(fd, data, 0)
            if durable:
                filesystem.fsync(fd)
        finally:
            filesystem.close(fd)
        filesystem.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            filesystem.unlink(temporary)
        raise from_os_error(f"write {path}", error) from error
    if durable:
        try:
            sync_folder(path.parent)
        except RaylogError as error:
            raise NotDurable(path, error) from error


def write_at(fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
    """Write `data` at `position`; returns the bytes written, which are all of them.

    One system call unless the kernel writes less. Raises the plain OSError: only the caller knows what to undo.
    """
    total = len(data)
    written = filesystem.pwrite(fd, data, position)
    while written < total:
        written += filesystem.pwrite(fd, memoryview(data)[written:], position + written)  # a full disk raises here
    return total


def read_at(fd: int, size: int, position: int) -> bytes:
    """Up to `size` bytes at `position`; fewer only at the end of the file."""
    data = filesystem.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    missing = size - len(data)
    while missing:
        data = filesystem.pread(fd, missing, position + size - missing)
        if not data:
            break
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def read_bytes(path: Path) -> bytes:
    """All bytes of a small file. Raises OSError."""
    fd = open_file(path, os.O_RDONLY)
    try:
        return read_at(fd, filesystem.fstat(fd).st_size, 0)
    finally:
        filesystem.close(fd)


def read_text(path: Path) -> str | None:
    """The text of a small file, or None where there is none."""
    try:
        return read_bytes(path).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(f"read {path}", error) from error


def remove(path: Path) -> None:
    """Remove a file if it exists. Durable after `sync_folder`."""
    try:
        filesystem.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise from_os_error(f"remove {path}", error) from error


def remove_tree(folder: Path) -> None:
    """Remove a folder with its contents; links are removed, not followed. Raises StorageIoError."""
    for path in list_files(folder):
        try:
            filesystem.unlink(path)
        except IsADirectoryError:
            remove_tree(path)
        except OSError as error:
            raise from_os_error(f"remove {path}", error) from error
    try:
        filesystem.rmdir(folder)
    except OSError as error:
        raise from_os_error(f"remove {folder}", error) from error
