"""Reserved descriptors, so that the log can continue when the process has run out of them.

A process that holds as many connections as its descriptor limit allows can open no file: EMFILE. That is no disk error.
Every open of this package goes through `open_file`, which frees a reserved descriptor and retries; later calls refill
the reserve. A remaining failure raises `DescriptorsExhausted`: the call can be repeated, nothing is lost.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

from raylog.storage import filesystem

RESERVED = 8
"""A roll opens one file permanently and two temporarily, in each of the owner's thread and the thread that syncs."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """Descriptors of `/dev/null`, closed when another file needs a descriptor. Safe to use from any thread."""

    def __init__(self, size: int = RESERVED) -> None:
        self._size = size
        self._held: list[int] = []
        self._lock = threading.Lock()
        self._short = False

    def fill(self) -> None:
        """Open as many descriptors as are missing, or as are available."""
        with self._lock, suppress(OSError):  # none is left: the next call retries
            self._short = True
            while len(self._held) < self._size:
                self._held.append(filesystem.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC, 0))
            self._short = False

    def open(self, path: Path, flags: int, mode: int) -> int:
        """As `os.open`, with a reserved descriptor's place if there is no other."""
        if self._short:
            self.fill()
        while True:
            try:
                return filesystem.open(path, flags, mode)
            except OSError as error:
                # Another thread may take the freed descriptor, for a connection: so retry until none is left.
                if error.errno not in EXHAUSTED or not self._give_up_one():
                    raise

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            filesystem.close(self._held.pop())
            self._short = True
            return True

    def release(self) -> None:
        """Close the reserved descriptors."""
        with self._lock:
            while self._held:
                filesystem.close(self._held.pop())
            self._short = False


_reserve = Reserve()


def keep_reserve() -> None:
    """Fill the process's reserve. Called when a log is opened. Idempotent."""
    _reserve.fill()


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """As `os.open` with O_CLOEXEC; from the reserve when the process has no descriptor left. Raises OSError."""
    return _reserve.open(path, flags | os.O_CLOEXEC, mode)
