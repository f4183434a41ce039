"""Files that only their owner may read or change, with any umask: notes that later commands trust, and Ray's token.

May touch: these files.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

logger = logging.getLogger(__name__)

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def open_private(path: Path) -> BinaryIO:
    """Open a file for writing, empty it, and make it inaccessible to other users. Raises OSError."""
    descriptor = os.open(path, _FLAGS, 0o600)
    file = os.fdopen(descriptor, "wb")
    os.fchmod(descriptor, 0o600)  # an existing file keeps its mode otherwise
    return file


def write_private(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file atomically: a reader sees all of the old file or all of the new one. Raises OSError.

    ``durable``: both the file and its name are on disk when this returns.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open_private(fresh) as file:
            file.write(text.encode())
            if durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def keep_ray_token_private() -> None:
    """Make Ray's token inaccessible to other users of this machine: with it they could run anything as this user.

    Ray creates the file with the mode that the umask gives. A file of another user is left as it is.
    """
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        found = path.stat()
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o600)
            logger.warning("%s could be read or changed by others than its owner: it has mode 600 now", path)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("%s holds Ray's token, and its mode cannot be looked at: %s", path, error)
