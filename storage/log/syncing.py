"""One sync of a log's segments, in a thread of its own while the owner appends. Called by `PartitionLog.sync`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from raylog.storage import filesystem
from raylog.storage.errors import from_os_error
from raylog.storage.log.files import sync_folder
from raylog.storage.log.segment import Segment


class SyncRound:
    """The segments that one sync covers, each as large as it was when the round began."""

    __slots__ = ("_begun", "_folder", "sizes")

    def __init__(self, segments: Iterable[Segment], folder: Path | None) -> None:
        """Take hold of each segment's descriptor; `folder` is synced too unless it is None.

        The caller keeps retention and truncation out meanwhile. Raises DescriptorsExhausted, StorageIoError or
        LogDamaged; nothing is held then.
        """
        self._folder = folder
        self._begun: list[tuple[Segment, int]] = []
        self.sizes: list[tuple[Segment, int]] = []
        try:
            for segment in segments:
                self.sizes.append((segment, segment.size))
                self._begun.append((segment, segment.begin_sync()))
        except BaseException:  # whatever it was, no segment may wait for a sync that never ends
            self._end()
            raise

    def run(self) -> None:
        """Bring all of it to disk. Raises StorageIoError, DiskFull, DescriptorsExhausted."""
        try:
            for segment, fd in self._begun:
                try:
                    filesystem.fdatasync(fd)
                except OSError as error:
                    raise from_os_error(f"sync {segment.path}", error) from error
            if self._folder is not None:
                sync_folder(self._folder)
        finally:
            self._end()

    def _end(self) -> None:
        for segment, _ in self._begun:
            segment.end_sync()
