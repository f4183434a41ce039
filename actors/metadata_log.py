"""The metadata log on disk: what the controller decided, in order. Owned by the controller's shell.

It is a partition log like any other: one batch per decision, one record per metadata record (msgpack).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from raylog.actors.clock import wall_ms
from raylog.actors.folder_lock import LOCK_WAIT_S, FolderLock
from raylog.actors.metadata_codec import decoded, encoded
from raylog.actors.naming import METADATA_TOPIC
from raylog.core.controller.image import MetadataImage
from raylog.core.controller.records import MetadataRecord
from raylog.storage.directory import partition_folder
from raylog.storage.log import LogConfig, PartitionLog
from raylog.storage.records import iter_headers

READ_BYTES: Final = 4 * 1024 * 1024
METADATA_TOPIC_ID: Final = "0" * 32


class MetadataLog:
    """Append-only list of metadata records; its end is the version of the image that replays it."""

    def __init__(self, log: PartitionLog, lock: FolderLock) -> None:
        """Wrap an opened log, and the lock that makes this process its only writer."""
        self.log = log
        self._lock = lock

    @classmethod
    def open(cls, folder: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> MetadataLog:
        """Open or recover the log below ``folder``, after an earlier life has let it go.

        Raises :class:`raylog.storage.errors.LogDamaged`, and :class:`raylog.core.errors.DataDirectoryError` when
        another process still writes to it after ``lock_wait_s`` seconds.
        """
        home = partition_folder(folder, METADATA_TOPIC, 0)
        lock = FolderLock(home, wait_s=lock_wait_s)
        try:
            log = PartitionLog.open(
                home,
                LogConfig(),
                topic_id=METADATA_TOPIC_ID,
                topic=METADATA_TOPIC,
                partition=0,
                now_ms=wall_ms(),
            )
        except BaseException:  # whatever it was, the lock must not stay with a log that was not opened
            lock.release()
            raise
        return cls(log, lock)

    def close(self) -> None:
        """Close the log cleanly and let the next controller have it."""
        try:
            self.log.close()
        finally:
            self._lock.release()

    def replay(self) -> MetadataImage:
        """Return the image that all records together make."""
        image = MetadataImage()
        for record in self.records():
            image.apply(record)
        return image

    def records(self) -> Iterator[MetadataRecord]:
        """Yield every record in order."""
        offset, end = self.log.log_start_offset, self.log.log_end_offset
        while offset < end:
            payload = self.log.read(offset, READ_BYTES, end)
            yield from decoded(payload)
            for _, header in iter_headers(payload):
                offset = header.next_offset

    def append(self, records: Sequence[MetadataRecord], controller_epoch: int) -> None:
        """Append records as one batch, all or none; not durable before ``log.sync()`` has returned."""
        self.log.append_as_leader(encoded(records), leader_epoch=controller_epoch, now_ms=wall_ms())
