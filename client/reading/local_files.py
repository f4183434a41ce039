"""Short-circuit reads: reads a leader's segment files on this machine directly, without the broker.

The leader names places in its files. They are below the high watermark, so their bytes do not change; retention may
delete a file, but an open one stays readable. A place is read in the thread that takes the records, a chunk at a time,
so data that was only located uses no memory. Errors here are not raised to the user: the records are fetched from the
leader instead, which checks its own log for damage. A leader is not trusted with other files: only a segment of the
partition, in a broker's data directory, is opened. Used by `partition.py`, `stream.py` and `range_fetcher.py`. May
touch: files that the leader has named, and the directories around them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

from raylog.base.errors import RaylogError, RetriableError
from raylog.base.ids import TopicPartition
from raylog.client.reading.decode import FetchedBatch
from raylog.client.reading.isolation import AbortedBatches
from raylog.protocol.method import AnyMethod
from raylog.protocol.replica import (
    FETCH,
    FETCH_NEAR,
    FetchNearRequest,
    FetchRequest,
    NearSlice,
)
from raylog.rpc import Connection, machine_number
from raylog.storage.batch.header import CRC_START, HEADER_BYTES, BatchHeader, iter_headers, parse_header
from raylog.storage.batch.times import TimeBounds

ALONE_BYTES = 64 << 10
"""A batch of at least so many bytes is read alone, so that its checksum can be computed without a copy."""


SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
BROKERS_FILE = "meta.properties"
"""The file that marks a folder as a broker's data directory."""


class NearReadFailed(RetriableError):
    """A leader's file on this machine cannot be read; its records have to be fetched. Users never get this error."""


class SegmentFile:
    """An open segment file. It is closed with its last reference, since two threads may read its places."""

    __slots__ = ("_fd", "identity")

    def __init__(self, path: str, identity: tuple[int, int], owner: int | None = None) -> None:
        """Raises NearReadFailed unless the path is a regular file, no link, with this (device, inode) and owner."""
        self._fd = -1
        self.identity = identity
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW)
            status = os.fstat(self._fd)
        except OSError as error:
            raise NearReadFailed(f"The segment {path} cannot be opened: {error}") from error
        if not stat.S_ISREG(status.st_mode):
            raise NearReadFailed(f"{path} is no regular file.")
        if owner is not None and status.st_uid != owner:
            raise NearReadFailed(f"{path} is not the broker's own file.")
        if (status.st_dev, status.st_ino) != identity:
            raise NearReadFailed(f"Under {path} there is another file here than at the leader.")

    def read(self, size: int, position: int) -> bytes:
        """Read exactly `size` bytes. Raises NearReadFailed."""
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
    aborted: AbortedBatches | None = None
    """The aborted transactions of the answer that named the place. Places of an answer have to be read in order."""

    def read(
        self, most_bytes: int, offset: int, times: TimeBounds | None = None
    ) -> tuple[list[FetchedBatch], Place | None]:
        """The first batch if it is large, else as many as fit into `most_bytes`; and where the rest is, None = none.

        A first batch without a record within `times` is skipped. Raises NearReadFailed for anything but complete
        batches, the first of which has `offset`; further ones have to follow it. This is checked because the checksum
        of a batch does not cover its base offset.
        """
        file, position, length, aborted = self
        try:
            first = parse_header(file.read(min(length, HEADER_BYTES), position))
            if first.size > length:
                raise NearReadFailed(f"A segment holds no whole batch at {position}.")
            shown = None if times is None else self._shown_outside(first, times)
            if shown is not None:
                batches = [FetchedBatch(shown, 0, first, True, is_skipped=True)]
                used = first.size
            elif first.size >= min(ALONE_BYTES, most_bytes):
                # Read only the bytes that the checksum covers: a slice of a larger read would have to be copied.
                data = file.read(first.size - CRC_START, position + CRC_START)
                batches = [FetchedBatch(data, -CRC_START, first, True)]
                used = first.size
            else:
                data = file.read(min(length, most_bytes), position)
                batches = [FetchedBatch(data, place, header, True) for place, header in iter_headers(data)]
                used = batches[-1].place + batches[-1].header.size
                if used < len(data) == length:
                    raise NearReadFailed(f"A segment holds no whole batch at {position + used}.")
        except RaylogError as error:
            raise NearReadFailed(f"A segment holds no batch at {position}: {error}") from error
        for number, (_, _, header, *_) in enumerate(batches):
            if not header.base_offset <= offset <= header.base_offset + header.last_offset_delta:
                if not number:
                    raise NearReadFailed(
                        f"A segment has the batch of offset {header.base_offset} for that of {offset}."
                    )
                used = sum(batch.header.size for batch in batches[:number])
                batches = batches[:number]
                break
            offset = header.base_offset + header.last_offset_delta + 1
        if aborted is not None:
            batches = [batch._replace(is_aborted=aborted.hides(batch.header)) for batch in batches]
        return batches, Place(file, position + used, length - used, aborted) if used < length else None

    def _shown_outside(self, header: BatchHeader, times: TimeBounds) -> bytes | None:
        """Bytes that prove that no record of the first batch is within these times; None = they do not."""
        most = HEADER_BYTES + times.bytes_to_show(header)
        if most >= header.size:
            return None
        start = self.file.read(most, self.position)
        return start if times.exclude(header, start[HEADER_BYTES:]) else None


def near_machine(connection: Connection, *, wants_near: bool) -> int | None:
    """The number of this machine, if local reads are wanted and the leader is on it; else None."""
    return machine_number() if wants_near and connection.stays_here else None


def near_or_plain(
    connection: Connection, fetch: FetchRequest, *, wants_near: bool
) -> tuple[AnyMethod, FetchRequest | FetchNearRequest]:
    """The method and the request of a fetch; it requests file places if the leader is on this machine."""
    number = near_machine(connection, wants_near=wants_near)
    if number is None:
        return FETCH, fetch
    return FETCH_NEAR, FetchNearRequest(
        fetch.topic_id,
        fetch.partition,
        fetch.current_leader_epoch,
        fetch.fetch_offset,
        fetch.max_bytes,
        fetch.min_bytes,
        fetch.max_wait_ms,
        fetch.isolation_level,
        number,
    )


def owner_of_segment(path: str, partition: TopicPartition) -> int:
    """The owner (user id) of the broker's data directory that this segment is in. Raises NearReadFailed.

    Raises it unless the path is a segment of the partition in a data directory. The directory itself may be reached
    through links, as its operator chose; links below it are refused.
    """
    folder, name = os.path.split(path)
    directory, folder_name = os.path.split(folder)
    if (
        not os.path.isabs(path)
        or os.path.normpath(path) != path
        or SEGMENT_NAME.fullmatch(name) is None
        or folder_name != f"{partition.topic}-{partition.partition}"
    ):
        raise NearReadFailed(f"{path!r:.300} is no segment of {partition}.")
    try:
        marked = os.lstat(os.path.join(directory, BROKERS_FILE))
        held = os.lstat(folder)
    except OSError as error:
        raise NearReadFailed(f"{directory} cannot be seen to be a broker's data directory: {error}") from error
    if not stat.S_ISREG(marked.st_mode) or not stat.S_ISDIR(held.st_mode) or held.st_uid != marked.st_uid:
        raise NearReadFailed(f"{directory} is no broker's data directory with a folder of {partition}.")
    return marked.st_uid


def open_places(
    rows: Iterable[NearSlice],
    last: SegmentFile | None,
    partition: TopicPartition,
    aborted: AbortedBatches | None = None,
) -> list[Place]:
    """Open the files that a leader has named; `last`: the file opened last, for reuse. Raises NearReadFailed."""
    places: list[Place] = []
    for row in rows:
        identity = (row.device, row.inode)
        if last is None or last.identity != identity:
            last = SegmentFile(row.path, identity, owner_of_segment(row.path, partition))
        places.append(Place(last, row.position, row.length, aborted))
    return places
