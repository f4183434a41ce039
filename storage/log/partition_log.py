"""The log of one partition: append, read, sync, truncate, recover.

Owned by one replica actor, whose thread makes every call but one: `sync` may run in a worker thread while the owner
appends, so that a slow disk never blocks the event loop. Acknowledged records must lie below `synced_end_offset`.

Ends are exclusive. `log_end_offset` is the next offset to be written; `log_start_offset` the first that can be read;
`synced_end_offset` the end of the records on disk. An append is atomic and one write; a failed one leaves the log
unchanged. Time is passed as `now_ms`, the wall clock in milliseconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from raylog.base.errors import RaylogError
from raylog.storage.batch.cleaned import filler
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import LENGTH_PREFIX_BYTES, BatchHeader, stamp_all
from raylog.storage.batch.marker import TxnMarker, markers_in
from raylog.storage.cleaner.ages import Ages
from raylog.storage.descriptors import keep_reserve
from raylog.storage.errors import DescriptorsExhausted, DiskFull, from_os_error, out_of_range
from raylog.storage.log.checkpoints import Checkpoints, CleanMark
from raylog.storage.log.config import AppendInfo, FileSlice, LogConfig, RecoveryReport
from raylog.storage.log.files import private_folder, sync_folder
from raylog.storage.log.kept_epochs import KeptEpochs
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.log.reading import RecentSegments, place_of
from raylog.storage.log.recovery import Recovered, Recovery, replay
from raylog.storage.log.retention import DeletedFiles, removable
from raylog.storage.log.scrubbable import ScrubbableLog
from raylog.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from raylog.storage.log.syncing import SyncRound
from raylog.storage.log.validation import check_bodies, check_offsets, check_produced, check_producers, inspect, rewrite

__all__ = ["AppendInfo", "FileSlice", "LogConfig", "PartitionLog", "RecoveryReport"]

CHECKPOINT_SECONDS, CHECKPOINT_BYTES = 5.0, 16 << 20
ABORTED_MAX = 1 << 16  # aborted transactions of a segment: those of the active one are in memory and in each snapshot


class PartitionLog(ScrubbableLog):
    """See the module. Made by `open` only."""

    def __init__(
        self, folder: Path, config: LogConfig, checkpoints: Checkpoints, state: Recovered, *, created: bool, now_ms: int
    ) -> None:
        self.folder = folder
        self.config = config
        self.created = created  # the folder did not exist, or was empty
        self.log_id = checkpoints.read_log_id()
        self.recovered = state.report
        self._kept_epochs = KeptEpochs(checkpoints, state.epochs)
        self.epochs = state.epochs  # changed by `_kept_epochs` alone
        self.producers = state.producers
        self.may_lack_producers = state.log_start_offset > 0 and state.producers == ProducerState()
        """Whether the log may know no producer of the batches before its start, although there were such batches."""
        self.segments = state.segments
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = self.synced_end_offset = self._active.next_offset
        self.cleaned_to, self.tombstones_due_ms = checkpoints.read_cleaned_to(), checkpoints.read_tombstones_due()
        self._checkpoints = checkpoints
        self._deleted = DeletedFiles(folder, now_ms + config.file_delete_delay_ms)
        self._recent, self._ages = RecentSegments(), Ages()
        # Guards the state that `sync` shares with the owner, except for plain appends, which need no lock: see `sync`.
        self._lock = threading.Lock()
        self._unsynced: list[Segment] = []  # sealed before they were synced
        self._folder_dirty = False
        self._generation = 0  # incremented by every truncation, so that an earlier sync does not advance the end
        self._recovery_point = state.recovery_point
        self.behind_since: float | None = None
        """When a sync left the recovery point behind (monotonic seconds); None = `checkpoint` has nothing to write."""
        self._appended_bytes = self._checkpointed_bytes = 0
        self._closed_because: str | None = None
        self.opened_for: object = None
        """The configuration for which `open_bodies` made the next payload of a leader; None = nothing did."""
        self._unreported_epochs: tuple[tuple[int, int], ...] = ()
        """Epochs that failed appends left in the epochs' file: the next append reports those that are still there."""

    @classmethod
    def open(
        cls,
        folder: Path,
        config: LogConfig,
        *,
        topic_id: str,
        topic: str,
        partition: int,
        now_ms: int,
        end_in_doubt: bool = False,
    ) -> PartitionLog:
        """Create the log or recover it. Raises LogDamaged, WrongTopicId, DiskFull, StorageIoError.

        `end_in_doubt`: an earlier incarnation acknowledged records before they were synced, so that those below the
        kept high watermark may be missing without damage.

        The caller holds the lock of the data directory: two logs on one folder would destroy each other.
        """
        private_folder(folder)
        keep_reserve()
        checkpoints = Checkpoints(folder)
        created = checkpoints.claim(topic_id, topic, partition)
        if created:
            sync_folder(folder.parent)
        state = Recovery(folder, config, checkpoints, now_ms, end_in_doubt=end_in_doubt).run()
        return cls(folder, config, checkpoints, state, created=created, now_ms=now_ms)

    @property
    def _active(self) -> Segment:
        return self.segments[-1]

    @property
    def lacks_producers(self) -> bool:
        """Whether the log is empty, begins above 0, and knows no producer of the batches before its start.

        Its leader does: a batch that is repeated there would be appended here a second time.
        """
        return self.may_lack_producers and self.size_bytes == 0

    def producers_below(self, offset: int) -> bytes:
        """A snapshot of what this log knows about the producers of the batches before `offset`."""
        return self.producers.below(offset).to_bytes()

    def adopt_producers(self, snapshot: Buffer) -> None:
        """Take what the leader knows of the producers before the start of this log, which is empty.

        Raises CorruptBatch. A disk that cannot keep it is no error: the next open requests it again.
        """
        self._require_open()
        self.may_lack_producers = False  # also where it cannot be read: it would be the same again
        self.producers = ProducerState.from_bytes(bytes(snapshot))
        self._checkpoints.try_write_snapshot(self.log_end_offset, self.producers)

    # --- appending -------------------------------------------------------------------------------------------------

    def append_as_leader(self, payload: Buffer, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Assign offsets to a producer's batches and append them; in the page cache on return.

        Writable memory is stamped in place: on return it equals the file's bytes, or `rewritten` of the result has
        them. A request that was stored before is answered with its first offsets and `duplicate`. Raises CorruptBatch,
        InvalidRecord, InvalidTimestamp, RecordTooLarge, UnsupportedCompression, OutOfOrderSequence, TooManyProducers,
        InvalidProducerEpoch, DuplicateSequence, InvalidTxnState, ConcurrentTransactions, DiskFull, StorageIoError;
        nothing is kept then.
        """
        if self._closed_because is not None:  # inlined, without a call: this is on the path of every batch
            self._require_open()
        config = self.config
        batches = inspect(payload)
        # Before the limits: a stored batch is not refused because of a limit set since, or of the time that has passed.
        duplicate = check_producers(batches, self.producers)
        if duplicate is not None:
            largest = max(header.max_timestamp for _, header in batches)
            return AppendInfo(*duplicate, True, largest, len(batches), rewritten=self.append_time_at(duplicate[0]))
        check_produced(batches, config, now_ms)
        if self.opened_for is not config:
            check_bodies(payload, batches, config, self.folder)
        if len(self.producers.producers) >= self.producers.looked_at_from:
            self.producers.admit({header.producer_id for _, header in batches if header.producer_id >= 0}, now_ms)
        changed = None
        if config.rewriting is not None:
            changed, batches = rewrite(payload, batches, config, now_ms, config.rewriting)
            payload = changed.payload
        offset = self.log_end_offset
        began = self._kept_epochs.enter([(leader_epoch, offset)])
        self._roll_if_due(len(payload), batches[-1][1], now_ms)
        view = memoryview(payload)
        if view.readonly:
            view = memoryview(bytearray(payload))
        done = self._write(view, stamp_all(view, batches, offset, leader_epoch), began, now_ms, {})
        return done if changed is None else done._replace(rewritten=changed)

    def append_as_follower(self, payload: Buffer, now_ms: int) -> AppendInfo:
        """Append the leader's bytes unchanged. Offsets must continue at the log's end, epochs must not decrease.

        Raises CorruptBatch, DiskFull, StorageIoError; nothing is kept then.
        """
        if self._closed_because is not None:
            self._require_open()
        batches = inspect(payload)
        first = batches[0][1]
        if first.base_offset < self.log_end_offset < first.next_offset and self.size_bytes == 0:
            return self._begin_within_a_batch(payload, first.base_offset, now_ms)
        if first.record_count == 0 and first.base_offset < self.log_end_offset < first.next_offset:
            return self._begin_within_a_gap(payload, first, now_ms)
        check_offsets(batches, self.log_end_offset)
        headers, starts = [], []  # without comprehensions, which are calls: every replicated batch passes here
        for _, header in batches:
            headers.append(header)
            starts.append((header.partition_leader_epoch, header.base_offset))
        markers = markers_in(payload, batches)
        unreported = self._unreported_epochs
        if unreported:
            unreported = tuple([entry for entry in unreported if entry in self.epochs.entries])
        began = self._kept_epochs.enter(starts)
        if unreported:
            began = (*unreported, *began)
        try:
            self._roll_if_due(len(payload), headers[-1], now_ms)
            done = self._write(payload, headers, began, now_ms, markers)
        except RaylogError:
            self._unreported_epochs = began
            self._forget_epochs_behind_end()
            raise
        self._unreported_epochs = ()
        return done

    def _forget_epochs_behind_end(self) -> None:
        """An append of several epochs failed: drop those that would begin after the end of the log."""
        try:
            self._kept_epochs.truncate_end(self.log_end_offset + 1)
        except RaylogError:
            self._closed_because = "epochs of a failed append could not be taken back"
            raise

    def _begin_within_a_batch(self, payload: Buffer, base_offset: int, now_ms: int) -> AppendInfo:
        """Accept the batch that holds an empty log's start: the records before that were deleted at the leader."""
        start, producers = self.log_start_offset, self.producers
        self.truncate_fully_and_start_at(base_offset, now_ms)
        self.producers = producers
        self._checkpoints.try_write_snapshot(base_offset, producers)
        try:
            done = self.append_as_follower(payload, now_ms)
            self.advance_log_start(start)
        except RaylogError:
            self._closed_because = self._closed_because or "a log whose first append failed has another start"
            raise
        return done

    def _begin_within_a_gap(self, payload: Buffer, first: BatchHeader, now_ms: int) -> AppendInfo:
        """Append the rest of a filler: the leader's cleaner has made one of batches that ended where this log does."""
        rest = filler(self.log_end_offset, first.next_offset, first.partition_leader_epoch)
        return self.append_as_follower(rest + bytes(memoryview(payload)[first.size :]), now_ms)

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`; durable on return. Called at election, before any record.

        Raises DiskFull, StorageIoError; the epoch is then not recorded.
        """
        self._require_open()
        self._kept_epochs.assign(epoch, start_offset)

    def _write(
        self,
        payload: Buffer,
        headers: list[BatchHeader],
        began: tuple[tuple[int, int], ...],
        now_ms: int,
        markers: Mapping[int, TxnMarker],
    ) -> AppendInfo:
        active, producers = self.segments[-1], self.producers
        try:
            written = active.write(payload)
        except OSError as error:
            if active.file_size() != active.size:
                self._closed_because = "a failed append could not be taken back"
            raise from_os_error(f"append to {active.path}", error) from error
        largest = headers[0].max_timestamp
        end = self.log_end_offset
        for header in headers:
            base_offset, newest = header.base_offset, header.max_timestamp
            end = base_offset + header.last_offset_delta + 1
            active.note(base_offset, end, newest, header.batch_length + LENGTH_PREFIX_BYTES)
            if header.producer_id >= 0:
                producers.apply(header, now_ms, markers.get(base_offset) if markers else None)
            if newest > largest:
                largest = newest
        self._appended_bytes += written
        # Last, because a sync in another thread requires that all bytes below this end are in the kernel.
        self.log_end_offset = end
        return AppendInfo(headers[0].base_offset, end, False, largest, len(headers), began)

    def _roll_if_due(self, size: int, last: BatchHeader, now_ms: int) -> None:
        active = self.segments[-1]
        if active.size == 0:
            active.created_ms = now_ms  # its age counts from the first batch
            return
        full = active.size + size > self.config.segment_bytes
        old = now_ms - active.created_ms >= self.config.segment_ms
        far = self.log_end_offset + last.last_offset_delta - active.base_offset + size > RELATIVE_OFFSET_MAX
        if full or old or far or len(self.producers.transactions.aborted) >= ABORTED_MAX:
            self._roll(now_ms)
        elif active.size >= active.hints_at_size and active.write_hints():
            self._checkpoints.try_write_snapshot(self.log_end_offset, self.producers)

    def _roll(self, now_ms: int) -> None:
        """Begin a new segment at the log's end. Raises DiskFull or StorageIoError, with nothing changed."""
        if self._active.cut_unsynced:
            self._sync_cut()
        self._active.keep_aborted(self.producers.transactions.aborted)
        interval = self.config.index_interval_bytes
        fresh = Segment.create(self.folder, self.log_end_offset, index_interval=interval, created_ms=now_ms)
        with self._lock:
            old = self._active
            old.seal()
            self.segments.append(fresh)
            if old.synced_size < old.size:
                self._unsynced.append(old)
            self._folder_dirty = True
            self.behind_since = -math.inf  # the next checkpoint is due
        self._recent.touch(old)
        # With the aborted transactions of the old segment, which is the active one again if a crash takes the new one.
        self._checkpoints.try_write_snapshot(self.log_end_offset, self.producers)
        self.producers.transactions.begin_segment(fresh.base_offset)

    def _sync_cut(self) -> None:
        """Sync the rollback of a failed append: recovery trusts the bytes before a later segment."""
        try:
            self._active.sync()
        except RaylogError:
            self._closed_because = "a sync failed, so bytes may be lost"
            raise

    # --- syncing ---------------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """As `sync_records`; then write the recovery point if it is due."""
        end = self.sync_records()
        self.checkpoint()
        return end

    def sync_records(self) -> int:
        """Sync all records appended before this call; returns `synced_end_offset`. `checkpoint` should follow.

        May run in a worker thread while the owner appends. Appends need no lock: the end is read before the files are
        synced, and an append moves the end only after its bytes are in the file. After a failed sync the kernel may
        have dropped the bytes: the log then refuses every call until it is opened again, which reads the disk.
        DescriptorsExhausted is no disk error: the call may be repeated.
        """
        with self._lock:
            self._require_open()
            end, generation, active = self.log_end_offset, self._generation, self._active
            if end == self.synced_end_offset and not self._folder_dirty and not active.cut_unsynced:
                return end
            folder_dirty, cut_unsynced = self._folder_dirty, active.cut_unsynced
            synced = SyncRound((*self._unsynced, active), self.folder if folder_dirty else None)
            self._folder_dirty = active.cut_unsynced = False
        try:
            synced.run()
        except DescriptorsExhausted:  # no disk error: no written bytes are in doubt
            self._folder_dirty = folder_dirty or self._folder_dirty
            active.cut_unsynced = cut_unsynced or active.cut_unsynced
            raise
        except RaylogError:
            self._closed_because = "a sync failed, so bytes may be lost"
            raise
        with self._lock:
            if generation == self._generation and self._closed_because is None:
                for segment, size in synced.sizes:
                    segment.synced_size = max(segment.synced_size, size)
                self._unsynced = [segment for segment in self._unsynced if segment.synced_size < segment.size]
                self.synced_end_offset = max(self.synced_end_offset, end)
                if self.behind_since is None:
                    self.behind_since = time.monotonic()
            return self.synced_end_offset

    def checkpoint(self, *, early: bool = False) -> None:
        """Write the recovery point if it is due, or `early`: a crash scans, and may cut, only bytes above it.

        May run in a worker thread, and while records wait for their acknowledgement: it takes several syncs of its own.
        Never raises, as an old recovery point is safe; one that could not be written is due again after another sync.
        """
        since = self.behind_since
        if since is None:
            return
        many = self._appended_bytes - self._checkpointed_bytes >= CHECKPOINT_BYTES
        if not (early or many or time.monotonic() - since >= CHECKPOINT_SECONDS):
            return
        with self._lock:
            if self.behind_since is not None and self._closed_because is None:
                self.behind_since = None
                with suppress(RaylogError):
                    self._write_recovery_point(self.synced_end_offset)

    def _write_recovery_point(self, offset: int) -> None:
        self._checkpoints.write_recovery_point(offset)
        self._recovery_point = offset
        self.behind_since = None
        self._checkpointed_bytes = self._appended_bytes

    # --- truncating ------------------------------------------------------------------------------------------------

    def end_after_cut(self, offset: int) -> int:
        """Where the log would end after a truncation to `offset`: it is cut between batches."""
        if not self.segments[0].base_offset <= offset < self.log_end_offset:
            return offset
        return self._cut_at(offset)[2]

    def _cut_at(self, offset: int) -> tuple[int, int, int]:
        """List index of the segment that is cut, the position there, and the log's end after that."""
        place = place_of(self.segments, offset)
        position, header = self.segments[place].locate(offset)
        return place, position, header.base_offset

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove every batch that has an offset at or after `offset`; epochs, producers and indexes follow.

        Durable on return. Only whole batches are cut, so the log may end before `offset`, and its start follows if it
        was higher. DiskFull: nothing is changed, or `is_closed`.

        An epoch that begins at or after `offset` is dropped even if there is no batch to cut.
        """
        self._require_open()
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return
        if offset >= self.log_end_offset:
            self._kept_epochs.truncate_end(offset)
            return
        place, position, end = self._cut_at(offset)
        segment = self.segments[place]
        # In this order a crash at any point leaves a log that recovery accepts: first the recovery point falls below
        # the cut, then the epochs go, then the bytes, from the end. A disk too full for small files changes nothing.
        with self._lock:
            self._generation += 1
            self.behind_since = None
            if self._recovery_point > end:
                self._write_recovery_point(end)
            self._lower_cleaned_to(end)
            self._kept_epochs.truncate_end(end)
        with self._cutting():
            self._checkpoints.remove_snapshots_above(end)
            for later in reversed(self.segments[place + 1 :]):
                self._recent.forget(later)
                later.remove_files()
            del self.segments[place + 1 :]
            self._recent.forget(segment)
            segment.cut(position, end)
            segment.unseal()
            self._settle(end)
        start, self.producers = self._checkpoints.read_snapshot(self.segments[0].base_offset, end)
        replay(self.segments, self.producers, start, now_ms)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything and restart at `offset`, for a follower that the leader's log start has overtaken.

        DiskFull: nothing is changed, or `is_closed`.
        """
        self._require_open()
        with self._lock:
            self._generation += 1
            self._write_recovery_point(0)
            self._lower_cleaned_to(offset)
        with self._cutting():
            self._checkpoints.write_log_start(offset)  # a crash from here on is finished by recovery
            self._checkpoints.remove_snapshots_above(-1)
            self._kept_epochs.clear()
            for segment in reversed(self.segments):
                segment.remove_files()
            interval = self.config.index_interval_bytes
            self.segments = [Segment.create(self.folder, offset, index_interval=interval, created_ms=now_ms)]
            self._recent.clear()
            self.producers = ProducerState()
            self.may_lack_producers = offset > 0
            self.log_start_offset = offset
            self._settle(offset)
            self._write_recovery_point(offset)

    @contextmanager
    def _cutting(self) -> Iterator[None]:
        """Exclude `sync` while the log is cut; the next open finishes a partial cut."""
        with self._lock:
            self._generation += 1
            try:
                yield
            except BaseException:  # after any error memory and disk may disagree
                self._closed_because = "a truncation failed halfway"
                raise

    def _settle(self, end: int) -> None:
        """Set the log's end to `end` after a cut; all remaining records are on disk."""
        for segment in self._unsynced:
            if segment in self.segments:
                segment.sync()
        self._unsynced = []
        self._ages.clear()
        sync_folder(self.folder)
        self._folder_dirty = False
        self.log_end_offset = self.synced_end_offset = end
        if self.log_start_offset > end:  # the batch that held the start was cut too
            self._checkpoints.write_log_start(end)
            self.log_start_offset = end

    # --- the start of the log --------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> None:
        """Make records below `offset` unreadable (delete_records); the next retention removes their segments."""
        self._require_open()
        if offset > self.log_end_offset:
            raise out_of_range(offset, self.log_start_offset, self.log_end_offset)
        if offset > self.log_start_offset:
            self._checkpoints.write_log_start(offset)
            self._move_start(offset)

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        with suppress(RaylogError):  # a history that begins too early is harmless
            self._kept_epochs.truncate_start(offset)

    def apply_retention(self, now_ms: int, high_watermark: int) -> list[int]:
        """Remove whole segments that are too old, too many, or below the log start; returns their base offsets.

        Only below the high watermark. Producers idle for too long are dropped, too. `now_ms` is the only time by which
        anything is deleted: pass a trusted clock. The files are renamed now and removed by `purge_deleted` after
        file.delete.delay.ms, so that readers of slices can finish. Raises DiskFull if the active segment is due and no
        new one can be created in its place; the segments before it are removed then.
        """
        self._require_open()
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)
        count = removable(self.segments, self.config, now_ms, high_watermark, self.log_start_offset)
        sealed = self.segments[: min(count, len(self.segments) - 1)]
        removed = self._remove(sealed, now_ms)
        if count > len(sealed):
            self._roll(now_ms)  # the active segment is due too: keep an empty one in its place
            removed += self._remove(self.segments[:1], now_ms)
        return removed

    def _remove(self, segments: list[Segment], now_ms: int) -> list[int]:
        """Remove segments in order: one that cannot be renamed stays, and so do all after it."""
        with self._lock:
            for segment in segments:
                self._deleted.add(segment, now_ms + self.config.file_delete_delay_ms)
                self._recent.forget(segment)
                self.segments.remove(segment)
                self._unsynced = [other for other in self._unsynced if other is not segment]
                self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self._move_start(self.log_start_offset)
        return [segment.base_offset for segment in segments]

    # --- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, write the snapshot, the recovery point and the clean mark, close the files. Idempotent.

        A log that has failed is only closed: it must be scanned when it is opened again.
        """
        try:
            if self._closed_because is None:
                self._write_clean(self.sync())
        except DiskFull:
            pass  # the records are on disk; without the clean mark the next open scans them
        finally:
            self._closed_because = self._closed_because or "it was closed"
            for segment in self.segments:
                segment.release()

    def _write_clean(self, end: int) -> None:
        with self._lock:
            active = self._active
            active.seal()
            self._checkpoints.write_snapshot(end, self.producers, durable=True)
            self._write_recovery_point(end)
            self._checkpoints.write_clean(CleanMark(end, active.base_offset, active.size))
