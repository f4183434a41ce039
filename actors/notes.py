"""Small files of text that only their owner may read or change, whatever the umask: the notes of this node's processes.

Not synced: they have to outlive processes only. May touch: these files.
"""

from __future__ import annotations

import os
from pathlib import Path

MODE = 0o600


def written(path: Path, text: str) -> None:
    """Write a note from its beginning. Raises OSError."""
    _write(path, text, os.O_TRUNC)


def added(path: Path, text: str) -> None:
    """Write at a note's end. Raises OSError."""
    _write(path, text, os.O_APPEND)


def _write(path: Path, text: str, flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, MODE)
    try:
        left = memoryview(text.encode())
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)
