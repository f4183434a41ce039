"""Position and buffer of one assigned partition. Filled by `fetcher.py`, emptied by poll(). Pure.

Two threads may use one of these at a time: the loop's thread calls `add`, and changes the position (seek, reset) only
while the user's thread waits for it; the user's thread calls `take`. Each counter has one writer, and the queue between
them is a deque, so neither needs a lock.

A *session* lasts while records are taken in sequence. A seek, a reset or damage starts the next one, and answers to
fetches of earlier sessions are dropped. So no record is returned twice or out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from raylog.base.epochs import EpochHistory
from raylog.base.errors import CorruptMessage, RaylogError, RecordDeserializationFailed
from raylog.base.ids import TopicPartition
from raylog.client.reading.decode import BatchOpener, ColumnPiece, FetchedBatch, corrupt
from raylog.client.reading.isolation import AbortedBatches
from raylog.client.reading.local_files import NearReadFailed, Place, SegmentFile
from raylog.client.types import Record
from raylog.storage.batch.header import iter_headers, out_of_place

NEAR_CHUNK_BYTES = 512 << 10
"""Bytes read from a file at once: their records should fit into the processor's caches."""
REFETCH_PAUSE_S = 1.0
"""The interval at which records that stay damaged are fetched again, and raise their error again."""
OPENED_BYTES_MAX = 64 << 20
"""A poll opens no more batches once it has decompressed more bytes than this."""
MAX_EPOCHS = 64
"""How many leader epochs a position remembers, at most; the newest ones."""


class Start(Enum):
    """Where a partition without a position starts."""

    COMMITTED = "committed"
    """At the group's committed offset; without one, as FIRST."""
    FIRST = "first"
    """At its start if it was created after the subscription began, else by auto_offset_reset."""
    POLICY = "policy"
    """By auto_offset_reset."""
    EARLIEST = "earliest"
    LATEST = "latest"


class PartitionState:
    """Position and buffer of one assigned partition. Offsets are those of the next record to read or fetch."""

    __slots__ = (
        "_added_bytes",
        "_after",
        "_at",
        "_damage",
        "_failure",
        "_located_bytes",
        "_near_chunk_bytes",
        "_near_read_bytes",
        "_on_room",
        "_opener",
        "_records",
        "_refetched_at",
        "_room_bytes",
        "_taken_bytes",
        "_taken_from",
        "_waiting",
        "compared_epoch",
        "consumed_bytes",
        "consumed_records",
        "doubted",
        "drains",
        "epochs",
        "fetch_offset",
        "high_watermark",
        "is_held_back",
        "is_of_new_topic",
        "is_paused_by_user",
        "log_start_offset",
        "partition",
        "pause_s",
        "paused",
        "position",
        "read_topic_id",
        "reads_near",
        "segment_file",
        "session",
        "start",
        "topic_id",
        "visible_end",
    )

    def __init__(
        self, partition: TopicPartition, opener: BatchOpener, start: Start, near_chunk_bytes: int = NEAR_CHUNK_BYTES
    ) -> None:
        """`near_chunk_bytes`: bytes read from a file at once."""
        self.partition = partition
        self.start = start
        """Where to start while `position` is None."""
        self.position: int | None = None
        """The offset of the next record that poll() returns; None until it is known."""
        self.fetch_offset = -1
        """Offset of the next fetch: after everything that is buffered."""
        self.session = 0
        self.is_paused_by_user = self.is_held_back = self.paused = False
        """`paused`: by the user, or because it is about to be revoked (`is_held_back`)."""
        self.topic_id = self.read_topic_id = ""
        """Topic ids of the position, and of the last batch opened since the user last moved it; empty = not known."""
        self.is_of_new_topic = False
        """Whether the topic was created again while this partition was read."""
        self.high_watermark = -1
        self.visible_end = -1
        """The end of the records that the isolation level shows: the high watermark, or the last stable offset."""
        self.log_start_offset = -1
        self.epochs = EpochHistory()
        """Leader epochs of the records read in sequence before `fetch_offset`, MAX_EPOCHS at most; empty = unknown.

        The newest is the epoch of the last opened batch, or of the committed offset."""
        self.compared_epoch = -1
        """The newest leader epoch whose leader is known to have the records read so far (`must_compare`)."""
        self.doubted = (-1, -1)
        """Session and leader epoch of a first answer that the log ends before the position; the second is believed."""
        self.pause_s = 0.0
        """Pause before the next fetch, after the same damage was met at this position before."""
        self._refetched_at = -1  # the position of the last `refetch`
        self.drains = False
        """Whether buffered records are taken before the next fetch, so that a new leader is compared with them all."""
        self._opener = opener
        self.reads_near = True
        """Whether to request places in its files from a leader on this machine; False after a failure."""
        self.segment_file: SegmentFile | None = None
        """The leader's file that was opened last."""
        self._waiting: deque[FetchedBatch | Place] = deque()  # fetched or located, not opened yet
        self._damage: RaylogError | None = None
        """The error that follows the waiting batches."""
        self._records: list[Record] = []  # of the open batch; those before index `_at` were taken
        self._at = 0
        self._after = -1
        """The position once all of `_records` are taken."""
        self._failure: RaylogError | None = None
        """The error that follows `_records`."""
        self._added_bytes = 0  # ever queued; minus `_taken_bytes` = bytes in `_waiting`
        self._taken_bytes = 0
        self._located_bytes = 0  # ever located in files; minus `_near_read_bytes` = those not read yet
        self._near_read_bytes = 0
        self._near_chunk_bytes = near_chunk_bytes
        self.consumed_bytes = self.consumed_records = 0
        """Bytes of all opened batches, and how many of their records the user gets."""
        self._taken_from: FetchedBatch | None = None
        """The batch whose records are in `_records`."""
        self._on_room: Callable[[], object] | None = None
        self._room_bytes = 0

    # The loop's side

    def pause(self, paused: bool) -> None:
        """Pause or resume for the user; a partition that is held back stays paused."""
        self.is_paused_by_user = paused
        self.paused = paused or self.is_held_back

    def hold_back(self) -> None:
        """Return no more records: the partition is about to be revoked."""
        self.is_held_back = self.paused = True

    def move_to(self, offset: int, epoch: int = -1) -> None:
        """Move to this offset, in a new session; `epoch`: leader epoch of the record before it, -1 = not known."""
        self.position = self.fetch_offset = offset
        self.epochs = EpochHistory([(epoch, offset - 1)] if epoch >= 0 and offset > 0 else ())
        self._drop()

    def return_to(self, offset: int) -> None:
        """Move back to an offset that was read, in a new session; epochs of earlier records stay known."""
        self.position = self.fetch_offset = offset
        self.epochs.truncate_end(offset)
        self._drop()

    def epoch_before(self, offset: int) -> int:
        """Leader epoch of the record before an offset; -1 if it was not read in sequence with the position."""
        position, epoch = self.position, self.epochs.epoch_for(offset - 1)
        return -1 if epoch is None or position is None or offset > position else epoch

    def find_start(self, start: Start) -> None:
        """Drop the position, in a new session; the next one is looked up as `start` says."""
        self.position = None
        self.fetch_offset = -1
        self.start = start
        self._drop()

    def begin_again(self, topic_id: str, start: Start) -> None:
        """The topic was deleted and created again: drop all that is known of the old one."""
        self.topic_id = topic_id
        self.is_of_new_topic = True
        self.high_watermark = self.visible_end = self.log_start_offset = -1
        self.compared_epoch = -1
        self.doubted = (-1, -1)
        self.epochs = EpochHistory()
        self.segment_file = None
        self.find_start(start)

    def refetch(self) -> None:
        """Drop buffered records and fetch again from the position; with a pause if it was the same the last time."""
        if self.position is not None:
            self.return_to(self.position)
            self.pause_s = REFETCH_PAUSE_S if self._refetched_at == self.position else 0.0
            self._refetched_at = self.position

    def _drop(self) -> None:
        self.session += 1
        self.pause_s = 0.0
        self.drains = False
        self._waiting.clear()
        self._records = []
        self._at = 0
        self._taken_from = None
        self._damage = self._failure = None
        self._taken_bytes = self._added_bytes
        self._near_read_bytes = self._located_bytes

    def add_places(self, session: int, places: list[Place], next_offset: int) -> bool:
        """Queue places in files whose batches end at `next_offset`; False if they belong to an earlier session."""
        if session != self.session:
            return False
        size = sum(place.length for place in places)
        self._located_bytes += size
        self._added_bytes += size
        self._waiting.extend(places)
        self.fetch_offset = max(self.fetch_offset, next_offset)
        return True

    def add(self, session: int, payload: memoryview, aborted: AbortedBatches | None = None) -> bool:
        """Queue the complete batches of a fetch's answer; False if they belong to an earlier session."""
        if session != self.session:
            return False
        taken_in = 0
        try:
            for place, header in iter_headers(payload):
                after = header.next_offset
                if not header.base_offset <= self.fetch_offset < after:
                    raise out_of_place(header, self.fetch_offset)
                is_aborted = aborted is not None and aborted.hides(header)
                self._waiting.append(FetchedBatch(payload, place, header, False, is_aborted))
                self.fetch_offset = after
                taken_in += header.size
        except RaylogError as error:
            self._damage = corrupt(self.partition, self.fetch_offset, error)
        if len(payload) and not taken_in and self._damage is None:
            self._damage = corrupt(self.partition, self.fetch_offset, ValueError("no whole batch was sent"))
        self._added_bytes += taken_in
        return True

    def stop_behind(self, session: int, error: RaylogError) -> None:
        """Have `take` raise this error once all buffered records were taken; ignored in a later session."""
        if session == self.session:
            self._damage = error

    def call_when_room(self, room_bytes: int, callback: Callable[[], object] | None) -> None:
        """Register a callback: called once, in the taking thread, when at most `room_bytes` are buffered.

        It is called after a take, not if there is room already: check for that after registering.
        """
        self._room_bytes = room_bytes
        self._on_room = callback

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches that were fetched or located, and not opened yet."""
        return self._added_bytes - self._taken_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of batches in memory: `buffered_bytes` without those that were only located."""
        return self.buffered_bytes - (self._located_bytes - self._near_read_bytes)

    @property
    def lag(self) -> int | None:
        """How many visible records are still to be returned, by the leader's last answer; None = not known."""
        position, end = self.position, self.visible_end
        return None if position is None or end < 0 else max(0, end - position)

    @property
    def lead(self) -> int | None:
        """Records from log start to position, None = not known; near 0 retention may soon remove unread ones."""
        position, start = self.position, self.log_start_offset
        return None if position is None or start < 0 else max(0, position - start)

    @property
    def has_places(self) -> bool:
        """Whether any located batch was not read yet."""
        return self._located_bytes > self._near_read_bytes

    def wants_fetch(self, partition_bytes_max: int) -> bool:
        """Whether to fetch more: it has a position, is not paused, and has at most `partition_bytes_max` buffered."""
        return (
            self.position is not None
            and not self.paused
            and self._damage is None
            and self._failure is None
            and self.buffered_bytes <= partition_bytes_max
        )

    # The user's side

    @property
    def offsets_topic_id(self) -> str:
        """Topic id of the records that the user got last; another topic may have the name by now."""
        return self.read_topic_id or self.topic_id

    @property
    def has_records(self) -> bool:
        """Whether `take` would return records or raise, as far as known without opening a batch."""
        if self.paused or self.position is None:
            return False
        return bool(self._waiting) or self._at < len(self._records) or bool(self._failure) or bool(self._damage)

    @property
    def failure(self) -> RaylogError | None:
        """The error of the next record, once all records before it were taken."""
        return self._failure if self._at >= len(self._records) else None

    def take(self, limit: int) -> list[Record]:
        """At most `limit` next records; moves the position past them.

        Raises CorruptMessage or RecordDeserializationFailed at a record that cannot be returned: once all records
        before it were taken, and again at each call until the position is changed.
        """
        taken: list[Record] = []
        until = self._opener.opened_bytes + OPENED_BYTES_MAX
        while limit > 0 and not self.paused and self.position is not None and self._opener.opened_bytes <= until:
            records, at = self._records, self._at
            left = len(records) - at
            if left > limit:
                piece = records[at : at + limit]
                self._at = at + limit
                self.position = piece[-1].offset + 1
            elif left > 0:
                piece = records[at:] if at else records
                self._records = []
                self._at = 0
                self.position = self._after
                self._forget_taken()
            elif self._has_opened(fail=not taken):
                continue
            else:
                break
            limit -= len(piece)
            if taken:
                taken += piece
            else:
                taken = piece
        return taken

    def take_one(self) -> Record | None:
        """The next record, or None; otherwise as `take`."""
        if self.paused or self.position is None:
            return None
        while self._at >= len(self._records):
            if not self._has_opened(fail=True):
                return None
        record = self._records[self._at]
        self._at += 1
        if self._at < len(self._records):
            self.position = record.offset + 1
        else:
            self.position = self._after
            self._forget_taken()
        return record

    def peek(self) -> Record | None:
        """The record that `take_one` would return, without moving the position; raises as `take`."""
        if self.paused or self.position is None:
            return None
        while self._at >= len(self._records):
            if not self._has_opened(fail=True):
                return None
        return self._records[self._at]

    @property
    def has_opened(self) -> bool:
        """Whether the next record is in an open batch, so that `take_one` is cheap."""
        return self._at < len(self._records) and not self.paused

    @property
    def opened_bytes(self) -> int:
        """Bytes ever decompressed to make records."""
        return self._opener.opened_bytes

    @property
    def is_in_hand(self) -> bool:
        """Whether an open batch, or a chunk that was read from a file, has more records."""
        front = self._waiting[0] if self._waiting else None
        return self._at < len(self._records) or (isinstance(front, FetchedBatch) and front.is_near)

    def take_columns(self, limit: int, *, fail: bool, may_read: bool = True) -> ColumnPiece | None:
        """At most `limit` next records of one batch as columns, or None. Deserializers are not applied.

        `may_read=False`: do not read from files. `fail`: raise the pending error.
        """
        self._close_opened()
        while not self.paused and self.position is not None and self._failure is None:
            if not may_read and self._waiting and isinstance(self._waiting[0], Place):
                return None
            batch, wanted = self._front(), self.position
            if batch is None:
                break
            try:
                self._opener.check(batch)
                piece = None if _is_skipped(batch, wanted) else self._piece(batch, wanted, limit)
            except RaylogError as error:
                self._failure = _of(batch, error)
                break
            if piece is not None and piece.end < batch.header.next_offset:
                self.position = piece.end
                self.consumed_records += piece.rows
                return piece
            self._opened(batch, 0 if piece is None else piece.rows)
            self.position = max(wanted, batch.header.next_offset)
            if piece is not None and piece.rows:
                return piece
        if self.has_records:
            self._has_opened(fail=fail)
        return None

    def _piece(self, batch: FetchedBatch, wanted: int, limit: int) -> ColumnPiece:
        """The batch's records from offset `wanted` on. A batch with gaps has to be opened to count them."""
        header = batch.header
        first, next_offset = max(wanted, header.base_offset), header.next_offset
        if header.record_count == header.last_offset_delta + 1:
            end = min(next_offset, first + limit)
            opened = self._opener.sound_piece(batch, first, end)  # if it raises, the position stays
            return ColumnPiece(self.partition, batch, self._opener, first, end, end - first, opened)
        offsets = self._opener.sound_piece(batch, first, next_offset).offsets
        end = next_offset if len(offsets) <= limit else offsets[limit]
        return ColumnPiece(self.partition, batch, self._opener, first, end, min(len(offsets), limit))

    def _close_opened(self) -> None:
        """Put back a batch that `take` opened and did not finish, so that `take_columns` continues in it."""
        batch, self._taken_from = self._taken_from, None
        is_refused = isinstance(self._failure, RecordDeserializationFailed)
        if batch is not None and (is_refused or self._at < len(self._records)):
            size = batch.header.size
            self._taken_bytes -= size
            self.consumed_bytes -= size
            self.consumed_records -= len(self._records) - self._at
            self._records, self._at = [], 0
            self._failure = None if is_refused else self._failure
            self._waiting.appendleft(batch)

    def _forget_taken(self) -> None:
        """Release the memory of a batch whose records were all taken."""
        if self._failure is None:
            self._taken_from = None

    def _has_opened(self, *, fail: bool) -> bool:
        """Open the next batch; False when there is none. Raises the pending error, if `fail`."""
        batch = self._front() if self._failure is None else None
        if self._failure is None and not self._waiting and self._damage is not None:
            self._failure = self._damage
        if self._failure is not None:
            if fail:
                raise self._failure
            return False
        wanted = self.position
        if batch is None or wanted is None:
            return False
        after = max(wanted, batch.header.next_offset)
        records: list[Record] = []
        failure: RaylogError | None = None
        try:
            if _is_skipped(batch, wanted):
                self._opener.check(batch)
            else:
                records, failure = self._opener.open(batch, wanted)
        except RaylogError as error:
            self._failure = _of(batch, error)
            return self._has_opened(fail=fail)
        self._opened(batch, len(records))
        self._taken_from = batch
        self._records, self._at, self._failure = records, 0, failure
        self._after = records[-1].offset + 1 if failure is not None and records else wanted if failure else after
        if not records:
            self.position = self._after
        return True

    def _front(self) -> FetchedBatch | None:
        """The next batch, read from its file if it was only located; None if there is none or the read failed."""
        waiting = self._waiting
        if waiting and isinstance(waiting[0], Place):
            place = waiting[0]
            try:
                batches, rest = place.read(self._near_chunk_bytes, self.position or 0)
            except NearReadFailed as error:
                self._failure = error
                return None
            # No lock: the loop's thread only appends at the other end.
            waiting.popleft()
            if rest is not None:
                waiting.appendleft(rest)
            waiting.extendleft(reversed(batches))
            self._near_read_bytes += place.length - (0 if rest is None else rest.length)
        front = waiting[0] if waiting else None
        if not isinstance(front, FetchedBatch):
            return None
        self.read_topic_id = self.topic_id
        return front

    def _enter_epoch(self, epoch: int, start: int) -> None:
        if epoch < 0 or 0 <= self.compared_epoch < epoch:  # the checksum does not cover it: it may be damaged
            self.epochs = EpochHistory()
            return
        entries = self.epochs.entries
        self.epochs = EpochHistory(entries[-MAX_EPOCHS + 1 :])  # a copy: another thread may be reading the old one
        self.epochs.assign(epoch, start)

    def _opened(self, batch: FetchedBatch, records: int) -> None:
        """Remove the opened batch from the queue; count it, and the records of it that the user gets."""
        self._waiting.popleft()
        header = batch.header
        size = header.size
        self._taken_bytes += size
        self.consumed_bytes += size
        self.consumed_records += records
        if header.partition_leader_epoch != self.epochs.latest:
            self._enter_epoch(header.partition_leader_epoch, header.base_offset)
        call = self._on_room
        if call is not None and self.buffered_bytes <= self._room_bytes:
            self._on_room = None
            call()


def _of(batch: FetchedBatch, error: RaylogError) -> RaylogError:
    """The error for a batch that cannot be opened; NearReadFailed if it came from a file: it is fetched then."""
    if batch.is_near and isinstance(error, CorruptMessage):
        return NearReadFailed(error.message)
    return error


def _is_skipped(batch: FetchedBatch, wanted: int) -> bool:
    """Whether a batch has no records for the user: it is hidden, or wholly below the position."""
    return batch.is_hidden or batch.header.next_offset <= wanted
