"""Small text files that only their owner may read or change, with any umask: notes of this node's processes.

They are not synced, because they only have to outlive processes, not machines. May touch: these files.
"""

from __future__ import annotations

import os
from pathlib import Path

MODE = 0o600


def written(path: Path, text: str) -> None:
    """Write a note, replacing what it holds. Raises OSError."""
    _write(path, text, os.O_TRUNC)


def added(path: Path, text: str) -> None:
    """Append to a note. Raises OSError."""
    _write(path, text, os.O_APPEND)


def _write(path: Path, text: str, flag: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, MODE)
    try:
        left = memoryview(text.encode())
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)
