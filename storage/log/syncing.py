"""One sync of a log's segments, in its own thread while the owner appends. Called by `PartitionLog.sync`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from raylog.storage import filesystem
from raylog.storage.errors import from_os_error
from raylog.storage.log.files import sync_folder
from raylog.storage.log.segment import Segment


class SyncRound:
    """The segments of one sync, each with its size at the start."""

    __slots__ = ("_begun", "_folder", "sizes")

    def __init__(self, segments: Iterable[Segment], folder: Path | None) -> None:
        """Acquire each segment's descriptor; `folder` is synced too unless it is None.

        The caller excludes retention and truncation meanwhile. Raises DescriptorsExhausted, StorageIoError or
        LogDamaged, with no descriptor held.
        """
        self._folder = folder
        self._begun: list[tuple[Segment, int]] = []
        self.sizes: list[tuple[Segment, int]] = []
        try:
            for segment in segments:
                self.sizes.append((segment, segment.size))
                self._begun.append((segment, segment.begin_sync()))
        except BaseException:  # after any error no segment may wait for a sync that never ends
            self._end()
            raise

    def run(self) -> None:
        """Sync all of it. Raises StorageIoError, DiskFull, DescriptorsExhausted."""
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
