"""Files in a cluster's data directory beside the brokers' folders: random values that only their owner can read."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Final

from raylog.base.errors import DataDirectoryError, RaylogError, StartFailed
from raylog.storage.files import private_folder, sync_folder

logger = logging.getLogger(__name__)

NODE_FOLDER: Final = "broker"
"""Folder of a node's broker below the data directory, where every node has its own disk."""
ROOM_BYTES: Final = 1 << 16
"""Free space that a start needs: for the first records of a new controller epoch, and for notes."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_BROKER_FOLDER = re.compile(r"broker-[1-9][0-9]*")


def embedded_folders(root: Path) -> list[Path]:
    """Return the directories of embedded brokers below ``root``; a copy such as ``broker-1.bak`` does not count."""
    if not root.is_dir():
        return []
    return sorted(found for found in root.iterdir() if _BROKER_FOLDER.fullmatch(found.name) and found.is_dir())


def check_room(folder: Path) -> None:
    """Raise, before anything is started, when nothing can be written to a directory; a missing one is not checked.

    Without this check the controller would retry until the start times out, and the start could not name the reason.
    Raises StartFailed for a full disk or quota, DataDirectoryError for any other reason.
    """
    if not folder.is_dir():
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in _FULL:
            raise StartFailed(
                f"The disk of {folder} is full ({error.strerror}): free some space there, then start again."
            ) from None
        raise DataDirectoryError(f"{folder} cannot be used as a data directory: {error}") from None


def kept(root: Path, name: str) -> str:
    """Return 64 random hexadecimal digits, made at the first start and kept in a file that only its owner may read.

    Two first starts at the same time get the same value. Raises DataDirectoryError, also for a file that belongs to
    another user and can be read by others.
    """
    path = root / name
    try:
        private_folder(root, tighten=False)
        if not path.exists():
            _make(path)
        _check_private(path)
        return path.read_text(encoding="ascii").strip()
    except (OSError, RaylogError) as error:
        raise DataDirectoryError(f"{root} cannot be used as a data directory: {error}") from None


def _make(path: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600 with any umask
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)  # unlike a rename it never replaces a file that another start has made meanwhile
        except FileExistsError:
            return
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)


def _check_private(path: Path) -> None:
    found = path.stat()
    if not found.st_mode & 0o077:
        return
    if found.st_uid != os.geteuid():
        raise DataDirectoryError(
            f"{path} belongs to user {found.st_uid} and can be read by others (mode {found.st_mode & 0o777:o}). Make "
            "it yours with mode 600, or remove it to have a new one made at the next start."
        )
    path.chmod(0o600)
    logger.warning(
        "%s could be read by others (mode %o); now it has mode 600. If it may have been read, stop the cluster, remove "
        "the file and start again: a new one is made.",
        path,
        found.st_mode & 0o777,
    )
