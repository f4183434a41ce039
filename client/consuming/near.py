"""Reading segment files that lie on this machine, without the broker (short-circuit reads). Used by `partition.py`.

The leader names places in its files, all below the high watermark, so what lies there does not change; retention may
remove a name, but not a file that is open. A place is read in the thread that takes the records, a chunk at a time:
what was only located costs no memory. Whatever goes wrong here is not the user's concern: the leader is asked for the
bytes instead, and judges for itself whether its log is damaged. May touch: files that the leader has named.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from raylog.client.consuming.opening import FetchedBatch
from raylog.core.errors import RetriableError
from raylog.storage.errors import StorageError
from raylog.storage.records import HEADER_BYTES, iter_headers, parse_header


class NearReadFailed(RetriableError):
    """A segment file of a leader on this machine cannot be read here; its records have to be fetched. Not for users."""


class SegmentFile:
    """An open segment file. Closed when nobody refers to it any more: its places may be read in two threads."""

    __slots__ = ("_fd", "identity")

    def __init__(self, path: str, identity: tuple[int, int]) -> None:
        """Raises NearReadFailed unless that name leads to the file with this device and inode."""
        self._fd = -1
        self.identity = identity
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            status = os.fstat(self._fd)
        except OSError as error:
            raise NearReadFailed(f"The segment {path} cannot be opened: {error}") from error
        if (status.st_dev, status.st_ino) != identity:
            raise NearReadFailed(f"Under {path} there is another file here than at the leader.")

    def read(self, size: int, position: int) -> bytes:
        """Exactly these bytes. Raises NearReadFailed."""
        try:
            data = os.pread(self._fd, size, position)
        except OSError as error:
            raise NearReadFailed(f"A segment cannot be read: {error}") from error
        if len(data) != size:
            raise NearReadFailed(f"A segment ends at {position + len(data)}, before what the leader has named.")
        return data

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class Place(NamedTuple):
    """Whole batches in a file: `length` bytes at byte `position`."""

    file: SegmentFile
    position: int
    length: int

    def read(self, most_bytes: int) -> tuple[list[FetchedBatch], Place | None]:
        """The first batches, at least one and as many as fit into `most_bytes`, and the place of the others.

        Raises NearReadFailed when there is something else than whole batches.
        """
        file, position, length = self
        try:
            data = file.read(min(length, max(most_bytes, HEADER_BYTES)), position)
            if len(data) < length:
                first_bytes = parse_header(data).size
                if len(data) < first_bytes <= length:
                    data = file.read(first_bytes, position)
            batches = [FetchedBatch(data, place, header, True) for place, header in iter_headers(data)]
        except StorageError as error:
            raise NearReadFailed(f"A segment holds no batch at {position}: {error}") from error
        used = batches[-1].place + batches[-1].header.size if batches else 0
        if not used or (used < len(data) and len(data) == length):
            raise NearReadFailed(f"A segment holds no whole batch at {position + used}.")
        return batches, Place(file, position + used, length - used) if used < length else None
