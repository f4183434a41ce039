"""Small files of text that only their owner may read or change, whatever the umask: the notes of this node's processes.

Not synced: they have to outlive processes only. May touch: these files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Literal

MODE = 0o600


def opened(path: Path, mode: Literal["w", "a"] = "w") -> IO[str]:
    """Open a note for writing, or for more lines. Raises OSError."""
    return open(path, mode, encoding="utf-8", opener=_private)


def written(path: Path, text: str) -> None:
    """Write a note from its beginning. Raises OSError."""
    with opened(path) as file:
        file.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, MODE)
