"""`high-watermark-checkpoint`: the last high watermark of a partition, for the next start of its replica.

Everything below the offset in the file is committed, so it may be served without a request to another replica. The
file may lag: a smaller offset is always valid. A larger one is not: so the file is lowered before the log is cut below
it, and bounded by the end of a log that has lost records. Recovery reads it as well: what lies below is no torn end.
Owned by the replica's shell; `keep` may run in a worker thread.
"""

from __future__ import annotations

import threading
from pathlib import Path

import google_crc32c

from raylog.base.errors import RaylogError
from raylog.storage.files import read_text, remove, sync_folder, write_atomically

HIGH_WATERMARK = "high-watermark-checkpoint"


class KeptWatermark:
    """The file of one partition folder. `offset` is its content, 0 if it is missing or damaged."""

    __slots__ = ("_is_durable", "_lock", "_path", "_wanted", "offset")

    def __init__(self, folder: Path, log_end_offset: int) -> None:
        """Read the file. Records beyond the log's end were lost with it; other records may take those offsets later."""
        self._path = folder / HIGH_WATERMARK
        self._lock = threading.Lock()
        self.offset = kept_watermark(folder)
        self._wanted: int | None = self.offset  # None: closed
        self._is_durable = self.offset == 0  # an earlier process may have written the file without a sync
        if self.offset > log_end_offset:
            self.lower(log_end_offset)

    def want(self, offset: int) -> bool:
        """Set the offset that the next `keep` writes; True when it differs from the file's."""
        if self._wanted is not None:
            self._wanted = offset
        return offset != self.offset

    def keep(self, *, durable: bool = False) -> None:
        """Write the pending offset, with four system calls; an old file that survives a machine crash is valid, too.

        With `durable` the offset is on disk on return, even if it was written before. Raises RaylogError, and leaves
        the old file.
        """
        with self._lock:
            wanted = self._wanted
            if wanted is not None and (wanted != self.offset or (durable and not self._is_durable)):
                self._write(wanted, durable=durable)

    def lower(self, to: int) -> None:
        """Lower the file to at most `to`; durable on return. Called before the log is cut there."""
        with self._lock:
            if self._wanted is not None and self._wanted > to:
                self._wanted = to
            if self.offset > to:
                try:
                    self._write(to, durable=True)
                except RaylogError:  # a full disk still allows files to be removed
                    remove(self._path)
                    sync_folder(self._path.parent)
                    self.offset = 0

    def close(self) -> None:
        """Stop writing: the folder may have another owner from now on."""
        with self._lock:
            self._wanted = None

    def _write(self, offset: int, *, durable: bool) -> None:
        write_atomically(self._path, content_of(offset), durable=durable)
        self.offset, self._is_durable = offset, durable


def content_of(offset: int) -> bytes:
    """The content of the file with this watermark."""
    digits = b"%d" % offset
    return b"%s %08x\n" % (digits, google_crc32c.value(digits))


def kept_watermark(folder: Path) -> int:
    """The watermark in a partition's folder; 0 if it is missing or damaged."""
    try:
        text = read_text(folder / HIGH_WATERMARK) or ""
    except RaylogError:
        return 0
    digits = text.split(" ")[0]
    whole = digits.isascii() and digits.isdigit() and len(digits) < 20
    return int(digits) if whole and text.encode() == content_of(int(digits)) else 0
