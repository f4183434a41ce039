"""Memory that the processes of one broker share: a file of fixed size in ``/dev/shm``, mapped by each of them.

The file is in memory and not in the data directory. So a write never waits for a hanging disk and costs no disk writes,
and the content is lost at a reboot, when the monotonic clock begins again. Without such memory, replicas send their
heartbeats themselves. The simulator has a model of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from raylog.storage.directory import META
from raylog.storage.files import read_text
from raylog.storage.folder_lock import parse_properties

logger = logging.getLogger(__name__)

FOLDER: Final = Path("/dev/shm")
PREFIX: Final = "raylog-beats-"
PAGES_BYTES: Final = 132 * 1024
"""Size of the file: room for two thousand replicas."""
ABANDONED_MS: Final = 3_600_000
"""Files that no broker has used for so long are removed, because their cluster was killed."""


class SharedPages(Protocol):
    """Shared memory as 64-bit integers, each of which is read and written atomically."""

    @property
    def words(self) -> memoryview: ...

    def try_lock(self) -> bool:
        """Take the lock if it is free, without waiting; True when taken, and then :meth:`unlock` has to follow."""

    def unlock(self) -> None:
        """Undo :meth:`try_lock`."""

    def is_current(self) -> bool:
        """Return whether a process that now opens pages of this name gets these pages."""

    def close(self) -> None:
        """Unmap the pages; the others keep theirs. Idempotent."""

    def remove(self) -> None:
        """Remove the name. Processes that have the pages mapped keep them."""


class OpenPages(Protocol):
    """The type of :func:`open_pages`, which the simulator replaces."""

    def __call__(self, name: str, *, make: bool) -> SharedPages | None: ...


def pages_name(directory_id: str, folder: Path) -> str:
    """Return the name of the pages that belong to a data directory on this machine."""
    identity = f"{directory_id}\n{folder.resolve()}".encode()
    return PREFIX + hashlib.sha256(identity).hexdigest()[:32]


def beats_of(folder: Path) -> str:
    """Return the name of the pages of a data directory, from the files in it. Blocks: call it in a thread."""
    properties = parse_properties(read_text(folder / META) or "")
    return pages_name(properties.get("directory.id", ""), folder)


def open_pages(name: str, *, make: bool) -> SharedPages | None:
    """Return the pages of this name; ``make``: create them, full of zeros, if they do not exist.

    None: there are none that may be used. Pages of another user are not used, because any user may write to the folder.
    """
    try:
        return MappedPages(FOLDER / name, make=make)
    except (OSError, ValueError) as error:
        if make:
            logger.info("no memory is shared with the replicas, they send heartbeats themselves: %s", error)
        return None


class MappedPages:
    """Pages in a memory-mapped file."""

    def __init__(self, path: Path, *, make: bool) -> None:
        """Open or make the file. Raises OSError or ValueError when it does not exist or may not be used."""
        self._path = path
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        self._descriptor = os.open(path, flags, 0o600)
        try:
            status = os.fstat(self._descriptor)
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                raise PermissionError(f"{path} belongs to another user.")
            if make:
                # Allocated now: a later write into a page for which there is no memory would kill the process.
                os.posix_fallocate(self._descriptor, 0, PAGES_BYTES)
            self._map = mmap.mmap(self._descriptor, PAGES_BYTES)
        except BaseException:  # any error: the descriptor has no other owner
            os.close(self._descriptor)
            raise
        self._identity = (status.st_dev, status.st_ino)
        self._words = memoryview(self._map).cast("q")

    @property
    def words(self) -> memoryview:
        """The memory."""
        return self._words

    def try_lock(self) -> bool:
        """Lock the file, without waiting."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def unlock(self) -> None:
        """Unlock the file."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_current(self) -> bool:
        """Whether the path names this file."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> None:
        """Unmap and close the file."""
        if self._descriptor >= 0:
            self._words.release()
            self._map.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Remove the file."""
        if self.is_current():
            with suppress(OSError):
                os.unlink(self._path)


@contextmanager
def locked(pages: SharedPages) -> Iterator[bool]:
    """Hold the lock during a block if it is free; yields whether it was."""
    if not pages.try_lock():
        yield False
        return
    try:
        yield True
    finally:
        pages.unlock()


def remove_abandoned(now_ms: int, used_word: int) -> None:
    """Remove this user's files that no broker has used for ``ABANDONED_MS``; word ``used_word`` has the last use."""
    with suppress(OSError):
        for found in [FOLDER / name for name in os.listdir(FOLDER) if name.startswith(PREFIX)]:
            with suppress(OSError, ValueError):
                pages = MappedPages(found, make=False)
                try:
                    if now_ms - pages.words[used_word] > ABANDONED_MS:
                        pages.remove()
                finally:
                    pages.close()
