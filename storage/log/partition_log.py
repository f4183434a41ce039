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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from raylog.base.errors import RaylogError
from raylog.storage.batch.cleaned import filler
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import LENGTH_PREFIX_BYTES, BatchHeader, is_transactional, parse_header, stamp_all
from raylog.storage.batch.marker import TxnMarker, markers_in
from raylog.storage.batch.times import TimeBounds, TimesFound
from raylog.storage.descriptors import keep_reserve
from raylog.storage.errors import DescriptorsExhausted, DiskFull, LogClosed, NoRoomToClean, from_os_error, out_of_range
from raylog.storage.files import private_folder, sync_folder
from raylog.storage.log.checkpoints import Checkpoints, CleanMark
from raylog.storage.log.config import AppendInfo, FileSlice, LogConfig, RecoveryReport
from raylog.storage.log.kept_epochs import KeptEpochs
from raylog.storage.log.producer_state import ActiveProducer, ProducerState
from raylog.storage.log.reading import SegmentList, place_of, places
from raylog.storage.log.recovery import Recovered, Recovery, replay
from raylog.storage.log.retention import removable
from raylog.storage.log.validation import check_bodies, check_offsets, check_produced, check_producers, inspect, rewrite
from raylog.storage.segments.aborted import AbortedTxn
from raylog.storage.segments.replacing import DeletedFiles
from raylog.storage.segments.segment import RELATIVE_OFFSET_MAX, Segment, SyncRound

__all__ = ["AppendInfo", "FileSlice", "LogConfig", "PartitionLog", "RecoveryReport"]

CHECKPOINT_SECONDS, CHECKPOINT_BYTES = 5.0, 16 << 20
ABORTED_MAX = 1 << 16  # aborted transactions of a segment: those of the active one are in memory and in each snapshot


class PartitionLog:
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
        self.segments = SegmentList(state.segments, DeletedFiles(folder, now_ms + config.file_delete_delay_ms))
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = self.synced_end_offset = self._active.next_offset
        self.cleaned_to = checkpoints.read_cleaned_to()
        """Where the last cleaning ended. Only the choice of the time for the next one depends on it."""
        self.tombstones_due_ms = checkpoints.read_tombstones_due()
        """When the first tombstone that the last cleaning left may be removed, in ms since 1970; 0 = it left none."""
        self.checkpoints = checkpoints
        # Guards the state that `sync` shares with the owner, except for plain appends, which need no lock: see `sync`.
        self._lock = threading.Lock()
        self._unsynced: list[Segment] = []  # sealed before they were synced
        self._folder_dirty = False
        self.generation = 0  # incremented by every truncation, so that an earlier sync does not advance the end
        self.recovery_point = state.recovery_point
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
        kept high watermark may be missing without damage. The caller holds the lock of the data directory: two logs on
        one folder would destroy each other.
        """
        private_folder(folder)
        keep_reserve()
        checkpoints = Checkpoints(folder)
        created = checkpoints.claim(topic_id, topic, partition)
        if created:
            sync_folder(folder.parent)
        state = Recovery(folder, config, checkpoints, now_ms, end_in_doubt=end_in_doubt).run()
        return cls(folder, config, checkpoints, state, created=created, now_ms=now_ms)

    def require_open(self) -> None:
        """Raise LogClosed if the log was closed."""
        if self._closed_because is not None:
            raise LogClosed(self.folder, self._closed_because)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, perhaps by an error: it is to be opened again."""
        return self._closed_because is not None

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches kept."""
        return sum(segment.size for segment in self.segments)

    @property
    def oldest_ms(self) -> int:
        """Largest timestamp in the oldest segment, in milliseconds since 1970; -1 = the log has no record."""
        return self.segments[0].max_timestamp if self.log_start_offset < self.log_end_offset else -1

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
        self.require_open()
        self.may_lack_producers = False  # also where it cannot be read: it would be the same again
        self.producers = ProducerState.from_bytes(bytes(snapshot))
        self.checkpoints.try_write_snapshot(self.log_end_offset, self.producers)

    def count_producers_as_seen(self, now_ms: int) -> None:
        """Restart the idle time of all producers, after which those that send nothing are forgotten."""
        self.producers.count_as_seen(now_ms)

    def active_producers(self) -> list[ActiveProducer]:
        """The producers that the partition knows, by id."""
        self.require_open()
        return self.producers.active()

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
            self.require_open()
        config = self.config
        batches = inspect(payload)
        # Before the limits: a stored batch is not refused because of a limit set since, or of the time that has passed.
        duplicate = check_producers(batches, self.producers)
        if duplicate is not None:
            largest = max(header.max_timestamp for _, header in batches)
            is_dated = config.rewriting is not None and duplicate[0] >= self.log_start_offset
            known = self.segments.append_time_at(duplicate[0]) if is_dated else None
            return AppendInfo(*duplicate, True, largest, len(batches), rewritten=known)
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

    def append_marker(self, marker: TxnMarker, leader_epoch: int, now_ms: int) -> AppendInfo:
        """End a producer's transaction, as its leader; in the page cache on return.

        A marker that was written before is answered with `duplicate` and the end of the log, below which it lies.
        Raises InvalidProducerEpoch, TransactionCoordinatorFenced, DiskFull, StorageIoError; nothing is kept then.
        """
        self.require_open()
        offset = self.log_end_offset
        if not self.producers.check_marker(marker):
            return AppendInfo(offset, offset, duplicate=True, max_timestamp=-1, batches=1)
        began = self._kept_epochs.enter([(leader_epoch, offset)])
        payload = bytearray(marker.encode())
        header = parse_header(payload)
        self._roll_if_due(len(payload), header, now_ms)
        stamped = stamp_all(memoryview(payload), [(0, header)], offset, leader_epoch)
        return self._write(payload, stamped, began, now_ms, {offset: marker})

    def append_as_follower(self, payload: Buffer, now_ms: int) -> AppendInfo:
        """Append the leader's bytes unchanged. Offsets must continue at the log's end, epochs must not decrease.

        Raises CorruptBatch, DiskFull, StorageIoError; nothing is kept then.
        """
        if self._closed_because is not None:
            self.require_open()
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
        self.checkpoints.try_write_snapshot(base_offset, producers)
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
        self.require_open()
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
            self.roll(now_ms)
        elif active.size >= active.hints_at_size and active.write_hints():
            self.checkpoints.try_write_snapshot(self.log_end_offset, self.producers)

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log's end. Raises DiskFull or StorageIoError, with nothing changed."""
        if self._active.cut_unsynced:
            try:
                self._active.sync()  # recovery trusts the bytes before a later segment
            except RaylogError:
                self._closed_because = "a sync failed, so bytes may be lost"
                raise
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
        self.segments.recent.touch(old)
        # With the aborted transactions of the old segment, which is the active one again if a crash takes the new one.
        self.checkpoints.try_write_snapshot(self.log_end_offset, self.producers)
        self.producers.transactions.begin_segment(fresh.base_offset)

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, upper: int) -> bytes:
        """Whole batches from the one that holds `offset`, all ending at or below offset `upper`.

        At least one batch even if it exceeds `max_bytes`; empty at the end. Stops before a damaged batch; raises
        LogDamaged if the first one is damaged, and OffsetOutOfRange.
        """
        self._check_range(offset)
        upper = min(upper, self.log_end_offset)
        return self.segments.read(offset, max_bytes, upper, self.epochs, verified=self.config.verify_reads)

    def _check_range(self, offset: int) -> None:
        self.require_open()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise out_of_range(offset, self.log_start_offset, self.log_end_offset)

    def read_part(self, offset: int, start: int, size: int) -> bytes:
        """Up to `size` bytes of the batch that holds `offset`, from its byte `start` on; fewer at its end.

        They are not verified, because the CRC is that of the whole batch: the reader has to have sums of its own.
        Raises OffsetOutOfRange, LogDamaged.
        """
        self.require_open()
        if not self.log_start_offset <= offset < self.log_end_offset:
            raise out_of_range(offset, self.log_start_offset, self.log_end_offset)
        return self.segments.read_part(offset, start, size)

    def slices(self, offset: int, max_bytes: int, upper: int) -> list[FileSlice]:
        """As `read`, as places in files. Return only places below the high watermark; the reader checks CRCs."""
        self._check_range(offset)
        return places(self.segments.spans(offset, max_bytes, min(upper, self.log_end_offset)))

    def offset_for_timestamp(self, timestamp_ms: int, upper: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record below `upper` that is not older than `timestamp_ms`, or None.

        A batch whose body does not open is skipped: the times of its records are not known. Raises LogDamaged.
        """
        self.require_open()
        return self.segments.offset_for_timestamp(timestamp_ms, self.log_start_offset, upper)

    def first_within(self, times: TimeBounds, offset: int, upper: int, batches_max: int) -> TimesFound:
        """The first batch from `offset` on, below `upper`, that may hold a record within these times.

        Looks at the headers and the timestamps of at most `batches_max` batches. Raises OffsetOutOfRange.
        """
        self._check_range(offset)
        return self.segments.first_within(times, offset, min(upper, self.log_end_offset), batches_max)

    def max_timestamp(self, upper: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record below `upper` with the largest timestamp; None where none is."""
        self.require_open()
        return self.segments.max_timestamp(self.log_start_offset, upper)

    # --- transactions ------------------------------------------------------------------------------------------------

    def transaction_of(self, payload: Buffer) -> tuple[int, int, bool] | None:
        """The transaction of a leader's request: see `ProducerState.transaction_of`."""
        return self.producers.transaction_of(payload) if is_transactional(payload) else None

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction has begun here and has no marker."""
        return bool(self.producers.transactions.open)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: readers of committed records get what lies below it."""
        first = self.producers.transactions.first_unstable(high_watermark)
        return high_watermark if first is None else min(high_watermark, max(first, self.log_start_offset))

    def may_have_aborted(self, start: int) -> bool:
        """Whether aborted transactions are known in a segment with offsets at or above `start`."""
        if self.producers.transactions.aborted:
            return True
        return any(segment.has_aborted for segment in self.segments[place_of(self.segments, start) :])

    def aborted_transactions(self, start: int, upper: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with offsets in [start, upper), by first offset.

        From its first offset on the producer's batches are to be skipped, up to its next abort marker. `upper` lies at
        or below the last stable offset. Raises LogDamaged, StorageIoError, DescriptorsExhausted.
        """
        self.require_open()
        found = self.aborted_between(start, upper)
        return sorted([(entry.producer_id, entry.first_offset) for entry in found], key=lambda entry: entry[1])

    def aborted_between(self, start: int, upper: int) -> list[AbortedTxn]:
        """The aborted transactions with offsets in [start, upper), by their markers."""
        return self.segments.aborted_between(start, upper, self.producers.transactions.aborted)

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
            self.require_open()
            end, generation, active = self.log_end_offset, self.generation, self._active
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
            if generation == self.generation and self._closed_because is None:
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
        self.checkpoints.write_recovery_point(offset)
        self.recovery_point = offset
        self.behind_since = None
        self._checkpointed_bytes = self._appended_bytes

    # --- truncating ------------------------------------------------------------------------------------------------

    def end_after_cut(self, offset: int) -> int:
        """Where the log would end after a truncation to `offset`: it is cut between batches."""
        if not self.segments[0].base_offset <= offset < self.log_end_offset:
            return offset
        return self.segments.cut_at(offset)[2]

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove every batch that has an offset at or after `offset`; epochs, producers and indexes follow.

        Durable on return. Only whole batches are cut, so the log may end before `offset`, and its start follows if it
        was higher. An epoch that begins at or after `offset` is dropped even if there is no batch to cut. DiskFull:
        nothing is changed, or `is_closed`.
        """
        self.require_open()
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return
        if offset >= self.log_end_offset:
            self._kept_epochs.truncate_end(offset)
            return
        place, position, end = self.segments.cut_at(offset)
        # In this order a crash at any point leaves a log that recovery accepts: first the recovery point falls below
        # the cut, then the epochs go, then the bytes, from the end. A disk too full for small files changes nothing.
        with self._lock:
            self.generation += 1
            self.behind_since = None
            if self.recovery_point > end:
                self._write_recovery_point(end)
            self._lower_cleaned_to(end)
            self._kept_epochs.truncate_end(end)
        with self._cutting():
            self.checkpoints.remove_snapshots_above(end)
            self.segments.cut(place, position, end)
            self._settle(end)
        start, self.producers = self.checkpoints.read_snapshot(self.segments[0].base_offset, end)
        replay(self.segments, self.producers, start, now_ms)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything and restart at `offset`, for a follower that the leader's log start has overtaken.

        DiskFull: nothing is changed, or `is_closed`.
        """
        self.require_open()
        with self._lock:
            self.generation += 1
            self._write_recovery_point(0)
            self._lower_cleaned_to(offset)
        with self._cutting():
            self.checkpoints.write_log_start(offset)  # a crash from here on is finished by recovery
            self.checkpoints.remove_snapshots_above(-1)
            self._kept_epochs.clear()
            for segment in reversed(self.segments):
                segment.remove_files()
            interval = self.config.index_interval_bytes
            self.segments[:] = [Segment.create(self.folder, offset, index_interval=interval, created_ms=now_ms)]
            self.segments.recent.clear()
            self.producers = ProducerState()
            self.may_lack_producers = offset > 0
            self.log_start_offset = offset
            self._settle(offset)
            self._write_recovery_point(offset)

    def _lower_cleaned_to(self, end: int) -> None:
        """Lower `cleaned_to` to a cut at `end`, durably: what is appended there later is dirty. Raises DiskFull."""
        if self.cleaned_to > end:
            self.checkpoints.write_cleaned_to(end)
            self.cleaned_to = end

    @contextmanager
    def _cutting(self) -> Iterator[None]:
        """Exclude `sync` while the log is cut; the next open finishes a partial cut."""
        with self._lock:
            self.generation += 1
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
        sync_folder(self.folder)
        self._folder_dirty = False
        self.log_end_offset = self.synced_end_offset = end
        if self.log_start_offset > end:  # the batch that held the start was cut too
            self.checkpoints.write_log_start(end)
            self.log_start_offset = end

    # --- the start of the log --------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> None:
        """Make records below `offset` unreadable (delete_records); the next retention removes their segments."""
        self.require_open()
        if offset > self.log_end_offset:
            raise out_of_range(offset, self.log_start_offset, self.log_end_offset)
        if offset > self.log_start_offset:
            self.checkpoints.write_log_start(offset)
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
        self.require_open()
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)
        count = removable(self.segments, self.config, now_ms, high_watermark, self.log_start_offset)
        sealed = self.segments[: min(count, len(self.segments) - 1)]
        removed = self._remove(sealed, now_ms)
        if count > len(sealed):
            self.roll(now_ms)  # the active segment is due too: keep an empty one in its place
            removed += self._remove(self.segments[:1], now_ms)
        return removed

    def _remove(self, segments: list[Segment], now_ms: int) -> list[int]:
        """Remove segments in order: one that cannot be renamed stays, and so do all after it."""
        with self._lock:
            for segment in segments:
                self.segments.remove_one(segment, now_ms + self.config.file_delete_delay_ms)
                self._unsynced = [other for other in self._unsynced if other is not segment]
                self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self._move_start(self.log_start_offset)
        return [segment.base_offset for segment in segments]

    def replace_segments(self, pairs: Sequence[tuple[tuple[Segment, ...], Segment]], now_ms: int) -> None:
        """Put each new segment in the place of sealed ones, which hold the same offsets.

        Raises StorageIoError, NoRoomToClean; the log is then closed, and its recovery finishes what was decided.
        """
        with self._lock:
            try:
                for old, new in pairs:
                    self.segments.replace(old, new, now_ms + self.config.file_delete_delay_ms)
            except RaylogError as error:
                self._closed_because = "the swap of a cleaned segment failed halfway"
                if isinstance(error, DiskFull):
                    raise NoRoomToClean(error) from error
                raise

    def purge_deleted(self, now_ms: int) -> int:
        """Remove files whose delay has passed; returns their number."""
        return self.segments.deleted.purge(now_ms)

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
            self.checkpoints.write_snapshot(end, self.producers, durable=True)
            self._write_recovery_point(end)
            self.checkpoints.write_clean(CleanMark(end, active.base_offset, active.size))
