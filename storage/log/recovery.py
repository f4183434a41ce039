"""Open the files of a partition after a clean close or a crash.

Called by `PartitionLog.open` alone. After a clean close only the tail of each segment is read. After a crash every
segment from the recovery point on is scanned batch by batch (header, CRC, offset, leader epoch). A bad tail above both
the recovery point and the kept high watermark is cut and reported; any error below one of them raises LogDamaged before
a single batch is changed. In a large segment that holds the recovery point, the part before that point is trusted, like
the segments before, if index and producer snapshot reach near enough to it. The scan also rebuilds the indexes and
replays producer state. On return, all retained records are on disk.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from raylog.base.epochs import EpochHistory
from raylog.storage import filesystem
from raylog.storage.batch.header import HEADER_BYTES, BatchHeader, check_crc, parse_header
from raylog.storage.batch.marker import TxnMarker, decode_marker, is_marker
from raylog.storage.errors import CorruptBatch, DiskFull, LogDamaged, from_os_error
from raylog.storage.files import TEMPORARY, list_files, remove, sync_folder
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.config import LogConfig, RecoveryReport
from raylog.storage.log.kept_watermark import kept_watermark
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.segments.aborted import is_as_good
from raylog.storage.segments.index import IndexDamaged
from raylog.storage.segments.replacing import finish_swaps
from raylog.storage.segments.segment import LOG, TXN_INDEX, Segment

logger = logging.getLogger(__name__)

_SCAN_BYTES = 1 << 20


class Recovered(NamedTuple):
    """The state a log starts with; the last segment is the one to append to."""

    segments: list[Segment]
    epochs: EpochHistory
    producers: ProducerState
    log_start_offset: int
    recovery_point: int
    report: RecoveryReport


class _Damage(NamedTuple):
    segment: int  # its list index
    position: int
    offset: int
    reason: str


class Recovery:
    """One recovery of one folder; call `run` once."""

    def __init__(
        self, folder: Path, config: LogConfig, checkpoints: Checkpoints, now_ms: int, *, end_in_doubt: bool = False
    ) -> None:
        self.folder = folder
        self.config = config
        self.checkpoints = checkpoints
        self.now_ms = now_ms
        self.report = RecoveryReport()
        point = checkpoints.read_recovery_point()
        self.recovery_point = point or 0
        self.point_known = point is not None
        """Whether the recovery point is known; if not, any record may have been synced, and nothing is cut."""
        self.log_start = checkpoints.read_log_start()
        committed = 0 if end_in_doubt else kept_watermark(folder)
        self.whole_to = max(self.recovery_point, committed if committed > self.log_start else 0)
        """Everything below was synced, or committed: if it is missing, the log is damaged. The kept high watermark lies
        below the log start only while the log is being dropped, to begin there again; then it does not count."""
        known = checkpoints.read_epochs()
        self.epochs = known if known is not None else EpochHistory()
        self.epochs_known = known is not None
        self.producers = ProducerState()
        self.snapshot_offset = 0
        self.segments: list[Segment] = []

    def run(self) -> Recovered:
        """Run the recovery. Raises LogDamaged, StorageIoError, DiskFull; files are closed then."""
        try:
            self._list_segments()
            if not self.segments:
                self._begin_empty()
            elif not self._open_clean():
                self._open_after_crash()
            self._finish()
        except BaseException:  # after any error no file may stay open without an open log
            for segment in self.segments:
                segment.release()
            raise
        return Recovered(self.segments, self.epochs, self.producers, self.log_start, self.recovery_point, self.report)

    @property
    def _end(self) -> int:
        return self.segments[-1].next_offset

    def _list_segments(self) -> None:
        for path in list_files(self.folder, TEMPORARY):
            remove(path)
        finish_swaps(self.folder, self.config.index_interval_bytes)
        files = list_files(self.folder)
        indexes = {path.stem: path for path in files if path.suffix == TXN_INDEX}
        for path in files:
            if path.suffix == LOG and path.stem.isdigit():
                interval = self.config.index_interval_bytes
                self.segments.append(Segment(path, int(path.stem), index_interval=interval, created_ms=self.now_ms))
                self.segments[-1].has_aborted = indexes.pop(path.stem, None) is not None
        for path in indexes.values():  # a removal was interrupted
            remove(path)

    def _begin_empty(self) -> None:
        if self.whole_to > 0 or not self.point_known:
            raise LogDamaged(self.folder, 0, 0, f"all segments are missing; {self.whole_to} offsets were there")
        self._start_afresh(self.log_start)

    def _start_afresh(self, offset: int) -> None:
        for segment in reversed(self.segments):  # from the end, so that a crash in between leaves a prefix
            segment.remove_files()
        interval = self.config.index_interval_bytes
        self.segments = [Segment.create(self.folder, offset, index_interval=interval, created_ms=self.now_ms)]
        self.producers.clear()

    # --- after a clean close ---------------------------------------------------------------------------------------

    def _open_clean(self) -> bool:
        mark = self.checkpoints.read_clean()
        last = self.segments[-1]
        if mark is None or mark.last_base_offset != last.base_offset or mark.last_size != last.file_size():
            return False
        self._load_finished(len(self.segments))
        if self._end != mark.log_end_offset or self._end < self.whole_to:
            return False
        self.recovery_point = self._end
        self._load_producers(self._end, len(self.segments))
        last.unseal()
        self.report.clean = True
        return True

    def _load_finished(self, count: int) -> None:
        """Open the first `count` segments by their tails and check that they follow one another."""
        for place, segment in enumerate(self.segments[:count]):
            self.report.indexes_rebuilt += segment.load_sealed()
            if place + 1 < len(self.segments) and segment.next_offset != self.segments[place + 1].base_offset:
                following = self.segments[place + 1].base_offset
                reason = f"it ends at offset {segment.next_offset}, but the next segment begins at {following}"
                raise LogDamaged(segment.path, segment.size, segment.next_offset, reason)
            if not self.epochs_known:
                for _, header in segment.walk(0):
                    self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            if place + 1 < count:
                segment.release()
        self._check_aborted(self.segments[: min(count, len(self.segments) - 1)])

    def _check_aborted(self, segments: list[Segment]) -> None:
        """Read each index of aborted transactions, and rebuild the damaged ones from the batches."""
        damaged: set[int] = set()
        for segment in [each for each in segments if each.has_aborted]:
            try:
                segment.aborted()
            except LogDamaged:
                damaged.add(segment.base_offset)
            segment.release()
        if damaged:
            remake_aborted(segments, damaged)
            self.report.indexes_rebuilt += len(damaged)

    def _load_producers(self, upto: int, count: int) -> None:
        """Producer state from the newest snapshot not above `upto`, and the batches after it in `count` segments."""
        start = self.segments[0].base_offset
        self.snapshot_offset, self.producers = self.checkpoints.read_snapshot(start, upto)
        if start > 0 and self.producers == ProducerState():
            # Snapshots above know where transactions began whose first batches are removed; the state from here on does
            # not. A later recovery from one of them would find other aborted transactions than the new indexes have.
            self.checkpoints.remove_snapshots_above(upto)
        replay(self.segments[:count], self.producers, self.snapshot_offset, self.now_ms)

    # --- after a crash ---------------------------------------------------------------------------------------------

    def _open_after_crash(self) -> None:
        first = 0
        while first + 1 < len(self.segments) and self.segments[first + 1].base_offset <= self.recovery_point:
            first += 1
        self._load_finished(first)
        self._load_producers(max(self.recovery_point, self.segments[first].base_offset), first)
        damage = self._scan_from(first)
        if damage is not None:
            path = self.segments[damage.segment].path
            if damage.offset < self.whole_to or not self.point_known:
                raise LogDamaged(path, damage.position, damage.offset, damage.reason)
            self.report.reason = f"{path.name} at byte {damage.position}: {damage.reason}"
            self._note_cut(self.report.reason)
        last = damage.segment if damage is not None else len(self.segments) - 1
        if self.segments[last].next_offset < self.whole_to:
            reason = f"the log ends here, but everything below {self.whole_to} was synced"
            raise LogDamaged(
                self.segments[last].path, self.segments[last].size, self.segments[last].next_offset, reason
            )
        self._cut_behind(first, last)

    def _note_cut(self, reason: str) -> None:
        try:
            self.checkpoints.write_end_cut(reason)
        except DiskFull:
            # A log on a full disk must still be readable. The note matters only if this incarnation dies before it
            # reports the cut.
            logger.warning("%s: the cut of its end is not noted, because the disk is full", self.folder.name)

    def _scan_from(self, first: int) -> _Damage | None:
        for place in range(first, len(self.segments)):
            segment = self.segments[place]
            reason = None
            if place > first and segment.base_offset != self.segments[place - 1].next_offset:
                before = self.segments[place - 1]
                return _Damage(place - 1, before.size, before.next_offset, "the next segment does not follow")
            if place > first:
                self._keep_aborted(self.segments[place - 1])
            self.producers.transactions.begin_segment(segment.base_offset)
            believed = self._resume(segment)
            segment.drop_cached()  # an earlier process may have failed to sync what lies from here on
            reason = self._scan(segment)
            self.report.segments_scanned += 1
            self.report.bytes_scanned += segment.size - believed
            if reason is not None:
                return _Damage(place, segment.size, segment.next_offset, reason)
        return None

    def _keep_aborted(self, segment: Segment) -> None:
        """Check the aborted transactions of a scanned segment that has a successor.

        Their file is there, and is written only if it is wrong: a full disk would refuse it.
        """
        found = self.producers.transactions.aborted
        try:
            is_right = is_as_good(segment.aborted(), found)
        except LogDamaged:
            is_right = False
        if not is_right:
            segment.keep_aborted(found)

    def _resume(self, segment: Segment) -> int:
        """Skip bytes synced long ago, by index, snapshot and headers; returns how many the scan need not read."""
        upto = self.recovery_point
        try:
            if not self.epochs_known:
                raise IndexDamaged("the epochs have to be found in the batches")
            segment.resume(min(upto, self.snapshot_offset))
            headers = []
            for position, header in segment.walk(segment.size, segment.next_offset, segment.file_size()):
                check_epoch(self.epochs, header, self.log_start)
                headers.append((header, marker_at(segment, position, header)))
                if header.next_offset >= upto:
                    break  # the rest may be the torn end of a crash
        except (OSError, IndexDamaged, LogDamaged, CorruptBatch):
            segment.reset()  # scan everything: damage is found and reported there
            return 0
        for header, marker in headers:
            self._note(segment, header, marker)
        return segment.size

    def _scan(self, segment: Segment) -> str | None:
        """Accept every good batch after the known ones; returns why it stopped before the end of the file, or None."""
        file_size, room = segment.file_size(), _SCAN_BYTES
        # Uses more of the disk's queue than one read.
        filesystem.posix_fadvise(segment.fd, segment.size, 0, os.POSIX_FADV_WILLNEED)
        while segment.size < file_size:
            data = segment.read(segment.size, min(room, file_size - segment.size))
            used, room = 0, _SCAN_BYTES
            while used < len(data):
                if len(data) - used < HEADER_BYTES:
                    if segment.size + HEADER_BYTES > file_size:
                        return "fewer bytes than a batch header are left"
                    break
                try:
                    header = parse_header(data, used)
                    if segment.size + header.size > file_size:
                        return "a batch is cut off"
                    if used + header.size > len(data):
                        room = max(room, header.size)  # the next read begins with this batch and holds it whole
                        break
                    self._take(segment, data, used, header)
                except CorruptBatch as error:
                    return error.reason
                used += header.size
        return None

    def _take(self, segment: Segment, data: bytes, position: int, header: BatchHeader) -> None:
        if header.base_offset != segment.next_offset:
            raise CorruptBatch(f"it begins at offset {header.base_offset}, not at {segment.next_offset}")
        check_crc(data, position, header)
        epoch = header.partition_leader_epoch
        if self.epochs_known:
            check_epoch(self.epochs, header, self.log_start)
        elif epoch < self.epochs.latest:
            raise CorruptBatch(f"leader epoch {epoch} comes after {self.epochs.latest}")
        elif epoch >= 0:
            self.epochs.assign(epoch, header.base_offset)
        self._note(segment, header, decode_marker(data, position, header) if is_marker(header) else None)
        self.report.batches_scanned += 1

    def _note(self, segment: Segment, header: BatchHeader, marker: TxnMarker | None) -> None:
        segment.note(header.base_offset, header.next_offset, header.max_timestamp, header.size)
        if header.producer_id >= 0 and header.base_offset >= self.snapshot_offset:
            self.producers.apply(header, self.now_ms, marker)

    def _cut_behind(self, first: int, last: int) -> None:
        """Keep segments up to `last`, each up to its last good batch, and make that durable."""
        for segment in reversed(self.segments[last + 1 :]):
            self.report.bytes_cut += segment.file_size()
            self.report.segments_removed += 1
            segment.remove_files()
        del self.segments[last + 1 :]
        for segment in self.segments[first:]:
            excess = segment.file_size() - segment.size
            try:
                if excess:
                    filesystem.ftruncate(segment.fd, segment.size)
                    self.report.bytes_cut += excess
            except OSError as error:
                raise from_os_error(f"recover {segment.path}", error) from error
            segment.sync()
            if segment is not self.segments[-1]:
                segment.seal()
                segment.release()
            self.report.indexes_rebuilt += 1
        self.segments[-1].unseal()

    # --- both ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Make the small files agree with the segments."""
        if self.log_start > self._end:
            self._start_afresh(self.log_start)  # a full truncation was interrupted: finish it
        self.log_start = max(self.log_start, self.segments[0].base_offset)
        self.report.epochs_rebuilt = not self.epochs_known and bool(self.epochs.entries)
        trimmed = self.epochs.truncate_end(self._end + 1)
        if trimmed or self.report.epochs_rebuilt:
            self.checkpoints.write_epochs(self.epochs)
        self.checkpoints.remove_snapshots_above(self._end)
        self.checkpoints.remove_clean()
        self.report.end_cut = self.report.reason is not None or self.checkpoints.has_end_cut()
        if self.segments[-1].write_hints():
            self.checkpoints.try_write_snapshot(self._end, self.producers)
        sync_folder(self.folder)
        if not self.report.clean and self._end > 0:
            try:
                self.checkpoints.write_recovery_point(self._end)
                self.recovery_point = self._end
            except DiskFull:
                pass  # an old recovery point is safe, and a log on a full disk must still be readable


def check_epoch(epochs: EpochHistory, header: BatchHeader, log_start: int = 0) -> None:
    """CorruptBatch unless the epoch stamped on the batch is that of the history at its offsets.

    The history does not hold the epochs below the start of the log.
    """
    if epochs.entries and epochs.entries[0][1] <= header.last_offset:
        known = epochs.epoch_for(header.last_offset)
        if known != header.partition_leader_epoch:
            raise CorruptBatch(f"it is stamped with leader epoch {header.partition_leader_epoch}, history says {known}")
    elif not epochs.entries and header.partition_leader_epoch >= 0 and header.last_offset >= log_start:
        raise CorruptBatch(f"leader epoch {header.partition_leader_epoch} is not in the history")


def remake_aborted(segments: list[Segment], damaged: set[int]) -> None:
    """Rebuild the index of aborted transactions of each segment with a base offset in `damaged`, from all batches.

    `segments` are those of the log from its start on. Raises LogDamaged, StorageIoError, DiskFull.
    """
    state = ProducerState()
    for segment in segments:
        replay([segment], state, 0, 0)  # time 0: this state is dropped, so it need not know when producers wrote
        if segment.base_offset in damaged:
            segment.keep_aborted(state.transactions.aborted)
        segment.release()


def replay(segments: list[Segment], producers: ProducerState, start: int, now_ms: int) -> None:
    """Apply every batch of `segments` from offset `start` on to `producers`."""
    for segment in segments:
        producers.transactions.begin_segment(segment.base_offset)
        if segment.next_offset > start:
            position = segment.locate(start)[0] if start > segment.base_offset else 0
            for found, header in segment.walk(position):
                if header.producer_id >= 0:
                    try:
                        marker = marker_at(segment, found, header)
                    except CorruptBatch as error:
                        raise LogDamaged(segment.path, found, header.base_offset, error.reason) from error
                    producers.apply(header, now_ms, marker)


def marker_at(segment: Segment, position: int, header: BatchHeader) -> TxnMarker | None:
    """The marker at `position`, if the batch is one. Raises CorruptBatch, LogDamaged, StorageIoError."""
    if not is_marker(header):
        return None
    return decode_marker(segment.read(position, header.size), 0, header)
