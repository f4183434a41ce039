"""The port between storage and the operating system: every file operation, under one name each.

Every module of `storage/`, and the actors with files of their own, call `filesystem.pwrite(...)` in place of
`os.pwrite(...)`. Each name is the function of `os` itself, so a call costs the same. A simulator binds its own disk
with `bind`; production never does. Arguments, results and errors (OSError with its `errno`) are those of `os`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

Place = str | Path


class Status(Protocol):
    """The fields of `os.stat_result` that storage reads."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
    @property
    def st_ino(self) -> int: ...


open: Callable[[Place, int, int], int] = os.open  # noqa: A001  # under the name it has in `os`
close: Callable[[int], None] = os.close
pread: Callable[[int, int, int], bytes] = os.pread
pwrite: Callable[[int, bytes | bytearray | memoryview, int], int] = os.pwrite
ftruncate: Callable[[int, int], None] = os.ftruncate
fdatasync: Callable[[int], None] = os.fdatasync
fsync: Callable[[int], None] = os.fsync
posix_fadvise: Callable[[int, int, int, int], None] = os.posix_fadvise
flock: Callable[[int, int], None] = fcntl.flock
fstat: Callable[[int], Status] = os.fstat
stat: Callable[[Place], Status] = os.stat
chmod: Callable[[Place, int], None] = os.chmod
replace: Callable[[Place, Place], None] = os.replace
unlink: Callable[[Place], None] = os.unlink
mkdir: Callable[[Place, int], None] = os.mkdir
rmdir: Callable[[Place], None] = os.rmdir
listdir: Callable[[Place], list[str]] = os.listdir

CALLS = (
    *("open", "close", "pread", "pwrite", "ftruncate", "fdatasync", "fsync", "posix_fadvise", "flock", "fstat"),
    *("stat", "chmod", "replace", "unlink", "mkdir", "rmdir", "listdir"),
)
"""The names that `bind` replaces."""


@contextmanager
def bind(system: object) -> Iterator[None]:
    """Bind the methods of `system` named in `CALLS` in place of these calls, in the whole process, for a block."""
    before = {name: globals()[name] for name in CALLS}
    globals().update({name: getattr(system, name) for name in CALLS})
    try:
        yield
    finally:
        globals().update(before)
