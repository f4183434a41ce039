"""What a cluster's data directory keeps of its identity: the files ``secret`` and ``cluster-id``. Used by `start`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from raylog.core.errors import DataDirectoryError


def kept(root: Path, name: str) -> str:
    """Return 64 random hexadecimal digits, made at the first start and kept in a file that only its owner may read."""
    path = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            fresh = path.with_name(f"{name}.{os.getpid()}")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise DataDirectoryError(f"{root} cannot be used as a data directory: {error}") from None
