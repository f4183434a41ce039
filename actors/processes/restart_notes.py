"""Notes for a process's next incarnation that it ended because of a failure. See `core/restart_pause.py`.

The note is in memory (`/dev/shm`) if possible, because the data's disk may be what failed. If a note cannot be written
or read, the restart does not pause; nothing else depends on it. A module of its own, because it needs no Ray.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from raylog.actors import notes
from raylog.actors.clock import since_boot_ms
from raylog.core.restart_pause import RestartHistory, after_failure, pause_ms

IN_MEMORY: Final = Path("/dev/shm")  # holds a folder of Raylog, whose owner is checked


class RestartNotes:
    """The note of one actor, found by the actor's name."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """``folder`` None: this user's folder in memory."""
        if folder is None:
            parent = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
            folder = parent / f"raylog-restarts-{os.geteuid()}"
        self._folder = folder
        self._path = folder / hashlib.sha256(name.encode()).hexdigest()[:32]

    def note_failure(self) -> None:
        """Count one more failure."""
        history = after_failure(self._read(), since_boot_ms())
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if self._is_ours():
                notes.written(self._path, f"{history.failures} {history.failed_ms}\n")

    def pause_s(self) -> float:
        """Return how long to wait before starting, in seconds."""
        return pause_ms(self._read(), since_boot_ms()) / 1000

    def _read(self) -> RestartHistory:
        try:
            if self._is_ours():
                failures, failed_ms = self._path.read_text(encoding="ascii").split()
                return RestartHistory(failures=int(failures), failed_ms=int(failed_ms))
        except (OSError, ValueError):  # there is no note, or it cannot be parsed
            pass
        return RestartHistory()

    def _is_ours(self) -> bool:
        """Whether the folder belongs to this user: other users may write to the parent and make one of this name."""
        found = self._folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
