"""One segment of a partition log: a file of batches and its two indexes.

Owned by one `PartitionLog`, which alone appends to its last segment. A segment finds a batch, walks headers, and cuts
itself; the log decides what may be read or cut. Positions are bytes in the `.log` file, offsets are record offsets,
every end is exclusive.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from raylog.storage import filesystem
from raylog.storage.batch.header import HEADER_BYTES, BatchHeader, parse_header
from raylog.storage.descriptors import open_file
from raylog.storage.errors import CorruptBatch, LogDamaged, from_os_error
from raylog.storage.files import list_files, read_at, read_bytes, remove, sync_folder, write_at, write_atomically
from raylog.storage.segments.aborted import AbortedTxn, read_aborted, write_aborted
from raylog.storage.segments.index import IndexDamaged, OffsetIndex, TimeIndex, last_time_entry

LOG, INDEX, TIME_INDEX, SNAPSHOT, DELETED = ".log", ".index", ".timeindex", ".snapshot", ".deleted"
TXN_INDEX = ".txnindex"
NO_TIMESTAMP = -(2**63)
RELATIVE_OFFSET_MAX = 2**31 - 1
_WALK_BYTES = 4096
HINT_BYTES = 64 << 20
"""Growth after which a segment writes its indexes: a recovery then need not read all of it."""
_FOLIO_BYTES = 2 << 20
"""Largest page that the page cache commonly uses, aligned to its size."""
RECENT_BATCHES_MAX = 256
"""Number of last appended batches that a segment finds without its index or file."""

_DESCRIPTORS = threading.RLock()
"""Guards each segment's descriptor, which the syncing thread uses while the owner may close it."""

PlacedHeader = tuple[int, BatchHeader]


def offset_name(offset: int, suffix: str) -> str:
    """The 20-digit file name of base offset `offset`."""
    return f"{offset:020d}{suffix}"


def snapshot_offsets(folder: Path) -> list[int]:
    """The offsets for which a partition's folder has a snapshot of the producers, rising."""
    return sorted(int(path.stem) for path in list_files(folder, SNAPSHOT) if path.stem.isdigit())


class Segment:
    """A file of whole batches with rising offsets, from `base_offset` up to `next_offset`."""

    __slots__ = (
        "_aborted",
        "_fd",
        "_indexes",
        "_recent",
        "_since_index",
        "_syncing",
        "base_offset",
        "created_ms",
        "cut_unsynced",
        "has_aborted",
        "hints_at_size",
        "index_interval",
        "max_timestamp",
        "next_offset",
        "path",
        "sealed",
        "size",
        "synced_size",
    )

    def __init__(self, path: Path, base_offset: int, *, index_interval: int, created_ms: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.synced_size = 0
        self.cut_unsynced = False
        """Whether a failed append was rolled back and not synced: a loss of power may restore its bytes."""
        self.max_timestamp = NO_TIMESTAMP
        self.created_ms = created_ms
        """Wall clock at its first batch, or when the log was opened if that is later."""
        self.index_interval = index_interval
        self.sealed = False
        self.has_aborted = False
        """Whether it has a file of aborted transactions."""
        self._aborted: list[AbortedTxn] | None = None
        self._fd = -1
        self._syncing = -1
        """The descriptor in use by a sync, in its own thread; -1 = none."""
        self.hints_at_size = HINT_BYTES
        """The size at which a growing segment writes its indexes next."""
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._since_index = 0
        """Bytes since the last entry of the indexes."""
        self._recent: dict[int, int] = {}
        """Base offset to position of the last appended batches: a reader at the end begins and ends at one of them."""

    @classmethod
    def create(
        cls, folder: Path, base_offset: int, *, index_interval: int, created_ms: int, suffix: str = LOG
    ) -> Segment:
        """A new empty file; its name is durable after the folder is synced. Raises DiskFull, StorageIoError.

        A cleaner that replaces segments gives it another suffix at first.
        """
        path = folder / offset_name(base_offset, suffix)
        segment = cls(path, base_offset, index_interval=index_interval, created_ms=created_ms)
        segment._indexes = (OffsetIndex(), TimeIndex())
        try:
            segment._fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise from_os_error(f"create {path}", error) from error
        return segment

    # --- files -----------------------------------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        """The open file, opened on demand."""
        if self._fd < 0:
            with _DESCRIPTORS:
                self._open()
        return self._fd

    def _open(self) -> None:
        if self._fd < 0:
            try:
                self._fd = open_file(self.path, os.O_RDWR)
            except FileNotFoundError as error:
                raise LogDamaged(self.path, 0, self.base_offset, "the file is missing") from error
            except OSError as error:
                raise from_os_error(f"open {self.path}", error) from error

    def release(self) -> None:
        """Close the file and drop the indexes from memory; both are reloaded on demand."""
        with _DESCRIPTORS:
            fd, self._fd = self._fd, -1
            if fd >= 0 and fd != self._syncing:  # otherwise the sync closes it when it has ended
                filesystem.close(fd)
        if self.sealed:
            self._indexes = self._aborted = None
            self._recent.clear()

    def file_size(self) -> int:
        """The file system's size of the file, which may exceed `size` after a crash."""
        return filesystem.fstat(self.fd).st_size

    def sibling(self, suffix: str) -> Path:
        """The path of the index that belongs to this segment."""
        return self.path.with_suffix(suffix)

    def files(self) -> list[Path]:
        """The segment file and its indexes; an index may be missing, but not that of aborted transactions."""
        found = [self.path, self.sibling(INDEX), self.sibling(TIME_INDEX)]
        return [*found, self.sibling(TXN_INDEX)] if self.has_aborted else found

    def remove_files(self) -> None:
        """Close the segment and remove all its files."""
        self.release()
        for path in self.files():
            remove(path)

    # --- appending -------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write bytes after the end without making them part of the segment yet; on an OSError none of them stay."""
        try:
            return write_at(self._fd, data, self.size)
        except OSError:
            filesystem.ftruncate(self._fd, self.size)
            self.cut_unsynced = True
            raise

    def note(self, base_offset: int, next_offset: int, max_timestamp: int, size: int) -> None:
        """Make the batch just written (or found by recovery) at the end part of the segment."""
        if self._since_index >= self.index_interval:
            assert self._indexes is not None, "a segment that grows has its indexes in memory"
            self._indexes[0].append(base_offset - self.base_offset, self.size)
            self._indexes[1].append(self.max_timestamp, base_offset - self.base_offset)
            self._since_index = 0
        recent = self._recent
        recent[base_offset] = self.size
        if len(recent) > RECENT_BATCHES_MAX:
            del recent[next(iter(recent))]
        self._since_index += size
        self.size += size
        self.next_offset = next_offset
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def seal(self) -> None:
        """No more appends: write the indexes. A failure is harmless, the next open rebuilds them."""
        self.sealed = True
        if self.size:
            self.indexes()[1].append(self.max_timestamp, self.next_offset - self.base_offset)
        self._write_indexes()

    def write_hints(self) -> bool:
        """Write the indexes of a growing segment, if it has grown enough since the last time; True when it has."""
        if self.size < self.hints_at_size:
            return False
        self.hints_at_size = self.size + HINT_BYTES
        self._write_indexes()
        return True

    def _write_indexes(self) -> None:
        index, times = self.indexes()
        for path, data in ((self.sibling(INDEX), index.to_bytes()), (self.sibling(TIME_INDEX), times.to_bytes())):
            try:
                write_atomically(path, data, durable=False)
            except Exception:  # after any error an old or partial hint must not stay
                remove(path)

    def unseal(self) -> None:
        """Reopen for appends, after the log was cut back to here or opened: indexes in memory, none on disk."""
        _, times = self.indexes()
        times.truncate(self.next_offset - self.base_offset - 1)  # the closing entry was for a sealed segment
        self.sealed = False
        index = self.indexes()[0]
        self._since_index = self.size - index.tail()[1]
        self.hints_at_size = HINT_BYTES
        for path in self.files()[1:]:
            remove(path)
        self.has_aborted, self._aborted = False, None

    # --- aborted transactions --------------------------------------------------------------------------------------

    def aborted(self) -> list[AbortedTxn]:
        """The aborted transactions whose markers it holds, if it has a successor. Raises LogDamaged, StorageIoError."""
        if self.has_aborted and self._aborted is None:
            self._aborted = read_aborted(self.sibling(TXN_INDEX), self.base_offset)
        return self._aborted or []

    def keep_aborted(self, entries: list[AbortedTxn]) -> None:
        """Write the file of aborted transactions, before the segment gets a successor; durable on return.

        Raises DiskFull, StorageIoError.
        """
        if entries or self.has_aborted:
            self.has_aborted = write_aborted(self.sibling(TXN_INDEX), entries)
            self._aborted = None

    def sync(self) -> None:
        """Sync the file, in the thread of the owner."""
        self.sync_data()
        self.synced_size = self.size
        self.cut_unsynced = False

    def sync_data(self) -> None:
        """Write the file's dirty pages to disk. Raises StorageIoError, DiskFull."""
        try:
            filesystem.fdatasync(self.fd)
        except OSError as error:
            raise from_os_error(f"sync {self.path}", error) from error

    def begin_sync(self) -> int:
        """Return the descriptor to sync. It stays open until `end_sync`, even if the owner releases the segment.

        It is opened again only if the file was closed. Raises LogDamaged, DescriptorsExhausted,
        StorageIoError.
        """
        with _DESCRIPTORS:
            self._open()
            self._syncing = self._fd
            return self._syncing

    def end_sync(self) -> None:
        """The sync has ended: close the descriptor if the owner has released it meanwhile."""
        with _DESCRIPTORS:
            fd, self._syncing = self._syncing, -1
            if fd >= 0 and fd != self._fd:
                filesystem.close(fd)

    def drop_cached(self) -> None:
        """Drop the page cache after the end (`size`), so that these bytes are read from the disk.

        A failed sync leaves pages in the cache that look clean and never reached the disk; the kernel reports that
        once, perhaps to a process that has exited. Dirty pages are written first, because only clean ones can be
        dropped. Raises StorageIoError or DiskFull when they cannot be written.
        """
        self.sync_data()
        start = self.size // _FOLIO_BYTES * _FOLIO_BYTES  # a page larger than 4 KiB is dropped as a whole or not at all
        try:
            filesystem.posix_fadvise(self.fd, start, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise from_os_error(f"drop cached pages of {self.path}", error) from error

    def reset(self) -> None:
        """Reset all state of the content, before recovery rebuilds it."""
        self.size, self.next_offset, self.max_timestamp = 0, self.base_offset, NO_TIMESTAMP
        self._indexes, self._since_index, self.hints_at_size = (OffsetIndex(), TimeIndex()), 0, HINT_BYTES
        self._recent.clear()

    def resume(self, below: int) -> None:
        """Trust the index files for the part before the last indexed batch that begins below offset `below`.

        The caller checks the batches from there on. Raises OSError or IndexDamaged; also if that part is so small that
        it is better read, because reading finds damage.
        """
        index = OffsetIndex.from_bytes(read_bytes(self.sibling(INDEX)), self.file_size())
        times = TimeIndex.from_bytes(read_bytes(self.sibling(TIME_INDEX)))
        relative, position = index.floor(below - 1 - self.base_offset)
        if position < HINT_BYTES:
            raise IndexDamaged("it has no entry far enough")
        index.truncate(position + 1)
        times.truncate(relative)
        known = times.largest_below(relative)
        if known is None or known[1] != relative:  # hints are not synced: a loss of power may have cut one off
            raise IndexDamaged("the time index does not reach as far as the index")
        self.reset()
        self._indexes = (index, times)
        self.size, self.next_offset = position, self.base_offset + relative
        self.max_timestamp = known[0]

    # --- finding ---------------------------------------------------------------------------------------------------

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, loaded from disk or rebuilt when they are not in memory."""
        if self._indexes is None:
            try:
                self._indexes = (
                    OffsetIndex.from_bytes(read_bytes(self.sibling(INDEX)), self.size),
                    TimeIndex.from_bytes(read_bytes(self.sibling(TIME_INDEX))),
                )
            except (OSError, IndexDamaged):
                self.rebuild_indexes()
        assert self._indexes is not None
        return self._indexes

    def offset_index(self) -> OffsetIndex:
        """The index as far as it is known, where the batches may be too damaged to make it again."""
        try:
            return self.indexes()[0]
        except LogDamaged:
            return OffsetIndex()

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batch headers, in memory and (for a sealed segment) on disk."""
        fresh = Segment(self.path, self.base_offset, index_interval=self.index_interval, created_ms=self.created_ms)
        fresh.reset()
        for _, header in self.walk(0):  # raises before anything of this segment is changed
            fresh.note(header.base_offset, header.next_offset, header.max_timestamp, header.size)
        self._indexes, self._since_index = fresh._indexes, fresh._since_index
        self.next_offset, self.max_timestamp = fresh.next_offset, fresh.max_timestamp
        if self.sealed:
            self.seal()

    def walk(self, position: int, expected: int | None = None, end: int | None = None) -> Iterator[PlacedHeader]:
        """Each (position, batch header) from `position`, which must begin a batch, up to byte `end`.

        The first batch must begin at offset `expected` if that is given, and each other where the one before ends;
        LogDamaged otherwise. Small batches are read many at a time; of large ones only the header is read.
        """
        end = self.size if end is None else end
        if position == 0:
            expected = self.base_offset
        chunk, chunk_start = b"", 0
        while position < end:
            if position + HEADER_BYTES > chunk_start + len(chunk):
                chunk, chunk_start = self._pread(min(_WALK_BYTES, end - position), position), position
            try:
                header = parse_header(chunk, position - chunk_start)
            except CorruptBatch as error:
                raise LogDamaged(self.path, position, expected or self.base_offset, error.reason) from error
            if position + header.size > end:
                raise LogDamaged(self.path, position, header.base_offset, "a batch is cut off")
            relative = header.last_offset - self.base_offset
            if (expected is not None and header.base_offset != expected) or not 0 <= relative <= RELATIVE_OFFSET_MAX:
                reason = f"offset {expected} should follow here, not {header.base_offset}"
                raise LogDamaged(self.path, position, header.base_offset if expected is None else expected, reason)
            yield position, header
            position += header.size
            expected = header.next_offset

    def position_of(self, offset: int) -> int | None:
        """The position of the batch that begins at `offset`, if it was appended recently."""
        return self._recent.get(offset)

    def locate(self, offset: int) -> PlacedHeader:
        """The position and header of the batch that holds `offset`, which must lie in this segment."""
        hint = self.indexes()[0].floor(offset - self.base_offset)
        for relative, start in (hint, (0, 0)):
            try:
                for position, header in self.walk(start, self.base_offset + relative):
                    if header.next_offset > offset:
                        return position, header
            except LogDamaged:
                if start == 0:
                    raise
            if start:
                self.rebuild_indexes()  # the hint was wrong: do not use it again
        raise LogDamaged(self.path, 0, offset, "no batch holds this offset")

    def limit(self, position: int, first: int, max_bytes: int, upper: int, *, at_least_one: bool) -> tuple[int, int]:
        """The end of a read from `position`, where offset `first` begins: batches that end at or below `upper`.

        Returns (end position, offset there). No more than `max_bytes`, except for the first batch with `at_least_one`.
        Ends before a damaged header; raises LogDamaged if that is the first.
        """
        if self.size - position <= max_bytes and self.next_offset <= upper:
            return self.size, self.next_offset
        known = self._recent.get(upper)
        if known is not None and position < known <= position + max_bytes:
            return known, upper
        relative, start = self.indexes()[0].floor_within(upper - self.base_offset, position + max_bytes)
        if start > position:
            first = self.base_offset + relative
        else:
            start = position
        end = start
        try:
            for found, header in self.walk(start, first):
                stop = found + header.size
                is_first = at_least_one and found == position
                if header.next_offset > upper or (stop - position > max_bytes and not is_first):
                    break
                end, first = stop, header.next_offset
        except LogDamaged:
            if end == position:
                raise
        return end, first

    def largest_timestamp(self, upper: int) -> int:
        """The largest timestamp of the batches below offset `upper`; NO_TIMESTAMP if there are none."""
        if self.next_offset <= upper:
            return self.max_timestamp
        known = self.indexes()[1].largest_below(upper - self.base_offset)
        largest, offset = (known[0], self.base_offset + known[1]) if known else (NO_TIMESTAMP, self.base_offset)
        if offset < min(upper, self.next_offset):
            for _, header in self.walk(self.locate(offset)[0]):
                if header.next_offset > upper:
                    break
                largest = max(largest, header.max_timestamp)
        return largest

    def read(self, position: int, size: int) -> bytes:
        """Read exactly `size` bytes; LogDamaged if the file is shorter."""
        data = self._pread(size, position)
        if len(data) != size:
            raise LogDamaged(self.path, position + len(data), self.base_offset, "the file is too short")
        return data

    def _pread(self, size: int, position: int) -> bytes:
        try:
            return read_at(self.fd, size, position)
        except OSError as error:
            raise from_os_error(f"read {self.path}", error) from error

    # --- cutting and opening ---------------------------------------------------------------------------------------

    def cut(self, position: int, next_offset: int) -> None:
        """Shorten the file to `position`, where `next_offset` will be written; durable on return."""
        self._recent.clear()
        index, times = self.indexes()
        index.truncate(position)
        times.truncate(next_offset - self.base_offset)
        try:
            filesystem.ftruncate(self.fd, position)
        except OSError as error:
            raise from_os_error(f"shorten {self.path}", error) from error
        known = times.largest_below(next_offset - self.base_offset)
        relative, start = index.tail()
        self.size, self.next_offset = position, next_offset
        self.sync()
        self.max_timestamp = known[0] if known else NO_TIMESTAMP
        self._since_index = position - start
        for _, header in self.walk(start, self.base_offset + relative):
            self.max_timestamp = max(self.max_timestamp, header.max_timestamp)

    def load_sealed(self) -> bool:
        """Read size, end offset and largest timestamp of a finished segment from its tail.

        True when the indexes were wrong and have been rebuilt. LogDamaged when the batches are.
        """
        self.sealed = True
        self.size = self.synced_size = self.file_size()
        try:
            self._load_tail()
        except (OSError, IndexDamaged, LogDamaged):
            self.rebuild_indexes()
            return True
        return False

    def _load_tail(self) -> None:
        index = OffsetIndex.from_bytes(read_bytes(self.sibling(INDEX)), self.size)
        relative, start = index.tail()
        for _, header in self.walk(start, self.base_offset + relative):
            self.next_offset = header.next_offset
        last = last_time_entry(read_bytes(self.sibling(TIME_INDEX)))
        if self.size and (last is None or last[1] != self.next_offset - self.base_offset):
            raise IndexDamaged("the time index does not reach the end of the segment")
        self.max_timestamp = last[0] if last is not None else NO_TIMESTAMP


class SyncRound:
    """One sync of segments, each with its size at the start, in its own thread while the owner of the log appends."""

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
