"""One lane: the batches of one partition that are in the table and not yet marked, and which of them may be sent now.

The rules are those of a producer's delivery (`client/producer/sending/delivery.py`), with the difference that a batch
keeps its sequence over a crash, because it is written down:

- Before the first batch of a session the leader has to report what it knows of the producer. If that does not follow
  from what is in the table (a database that was restored from a backup, a partition that has lost records), the lane
  takes a higher producer epoch, and what is not acknowledged is numbered again.
- The first batch goes alone, also after every failure: a leader that does not know the producer accepts any sequence,
  so only behind a stored batch is a gap noticed.
- After a retriable failure nothing is sent until every request is answered; then the same bytes go again, in order.
- A batch that the topic refuses for good is taken apart: each of its rows goes in a batch of its own, and a row that is
  refused alone has failed. Batches sent behind it were refused as out of order, so they are numbered again as well.

Pure. Invariant: the batches have consecutive numbers; those not acknowledged have the producer epoch of the position.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from raylog.client.producer.resumed import KnownSequence
from raylog.core.errors import (
    DelayDisabled,
    DelayTooLong,
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
    UnsupportedCompression,
)
from raylog.core.ids import TopicPartition
from raylog.core.invariants import require
from raylog.outbox.model import (
    BATCHES_UNMARKED_MAX,
    PRODUCER_EPOCH_MAX,
    SEQUENCE_LIMIT,
    Changes,
    OutboxBatch,
    Position,
)
from raylog.outbox.planning import NO_ROOM, Room

REFUSED_FOR_GOOD = (
    RecordTooLarge,
    InvalidRecord,
    InvalidTimestamp,
    UnsupportedCompression,
    DelayTooLong,
    DelayDisabled,
)
"""Errors about the records of a batch. Every other error is about the topic, the cluster or the network, and passes
when that is mended."""
FIRST_PAUSE_MS = 50
LONGEST_PAUSE_MS = 5_000


class State(Enum):
    """Whether a batch is to be sent, is on its way, or was acknowledged."""

    QUEUED = "queued"
    SENT = "sent"
    STORED = "stored"


class _Entry:
    """One unmarked batch of the lane."""

    __slots__ = ("batch", "offset", "refusal", "state")

    def __init__(self, batch: OutboxBatch) -> None:
        self.batch = batch
        self.state = State.QUEUED
        self.offset = -1
        self.refusal: RaylogError | None = None


class Lane:
    """See the module. Owned by the session."""

    def __init__(self, where: TopicPartition, position: Position | None) -> None:
        """Begin without knowing what the leader has. ``position`` None: the table has no row of this lane."""
        self.where = where
        self.position = position
        self.is_verified = False
        self.last_error: RaylogError | None = None
        self._line: deque[_Entry] = deque()
        self._is_known_to_leader = False
        self._renew_above: int | None = None
        """Not None: the lane takes an epoch above this one, and above its own, before it sends again."""
        self._pause_ms = 0
        self._not_before_ms = 0

    # ------------------------------------------------------------ what is there

    def load(self, batch: OutboxBatch) -> None:
        """Take in a batch from the table: one of an earlier session, or a new one."""
        require(not self._line or self._line[-1].batch.number + 1 == batch.number, "numbers are consecutive")
        self._line.append(_Entry(batch))
        require(len(self._line) <= BATCHES_UNMARKED_MAX, "a leader recognises all unmarked batches of a lane")

    @property
    def unmarked(self) -> list[OutboxBatch]:
        """The batches that are not marked yet, in order."""
        return [entry.batch for entry in self._line]

    @property
    def wants_verification(self) -> bool:
        """Whether the leader has to report what it knows, and no batch on its way could change the answer."""
        return not self.is_verified and not self._is_any(State.SENT)

    def is_used_up(self, producer_id: int) -> bool:
        """Whether the lane has no further epoch under this producer id, and so needs another one."""
        position, above = self.position, -1 if self._renew_above is None else self._renew_above
        if position is None:
            return False
        return position.producer_id == producer_id and max(position.producer_epoch, above) >= PRODUCER_EPOCH_MAX

    def room(self, topic_id: str, producer_id: int) -> Room:
        """How many more batches the lane may take, and the position of the first of them."""
        position = self.position
        if not self.is_verified or self._renew_above is not None or self._refused() is not None:
            return NO_ROOM
        if position is None:
            position = Position(topic_id, producer_id, 0, 0, 0)
        if position.topic_id != topic_id or position.next_sequence > SEQUENCE_LIMIT:
            if self._line or self.is_used_up(producer_id):
                return NO_ROOM
            position = position.renewed(topic_id, producer_id)
        return Room(BATCHES_UNMARKED_MAX - len(self._line), position)

    # ------------------------------------------------------------ what the leader knows

    def verify(self, known: KnownSequence | None, now_ms: int) -> None:
        """Take in what the leader knows of the lane's producer; None = it does not know the producer."""
        require(self.wants_verification, "the leader reports while nothing is on its way")
        self.is_verified, self._is_known_to_leader = True, False
        if known is not None and not self._follows(known):
            self._renew_above = known.producer_epoch
        self._not_before_ms = min(self._not_before_ms, now_ms + LONGEST_PAUSE_MS)

    def _follows(self, known: KnownSequence) -> bool:
        """Whether what the leader knows fits the table: its last sequence ends where one of the batches begins."""
        position = self.position
        if position is None or known.producer_epoch > position.producer_epoch:
            return False  # the table has lost what was sent
        starts = {entry.batch.first_sequence for entry in self._line} | {position.next_sequence}
        if known.producer_epoch < position.producer_epoch:
            return 0 in starts  # nothing of this epoch is marked, or the leader has lost it
        return known.last_sequence + 1 in starts

    def recreated(self) -> None:
        """The topic was deleted and created again: unacknowledged batches go to the new one, in a new epoch."""
        if self._line and self._renew_above is None:
            self._renew_above = -1

    # ------------------------------------------------------------ sending

    def sendable(self, now_ms: int) -> list[OutboxBatch]:
        """The batches to send now, in order; from now on they count as on their way."""
        if not self.is_verified or self._renew_above is not None or now_ms < self._not_before_ms:
            return []
        found: list[OutboxBatch] = []
        for entry in self._line:
            if entry.refusal is not None:
                break
            if entry.state is State.STORED:
                continue
            if not self._is_known_to_leader and (found or self._is_any(State.SENT)):
                break
            if entry.state is State.QUEUED:
                entry.state = State.SENT
                found.append(entry.batch)
        return found

    def due_ms(self) -> int | None:
        """When the pause ends that a batch waits for; None = no batch waits for one."""
        waits = self.is_verified and self._is_any(State.QUEUED) and not self._is_any(State.SENT)
        return self._not_before_ms if waits else None

    def stored(self, number: int, offset: int) -> None:
        """A batch is acknowledged by all in-sync replicas."""
        entry = self._entry(number)
        entry.state, entry.offset, entry.refusal = State.STORED, offset, None
        self._is_known_to_leader = True
        self._pause_ms, self.last_error = 0, None

    def failed(self, number: int, error: RaylogError, now_ms: int) -> None:
        """An attempt has failed; the batch is sent again, or taken apart."""
        if isinstance(error, DuplicateSequence):  # stored so long ago that the leader has forgotten the offset
            self.stored(number, -1)
            return
        entry = self._entry(number)
        entry.state = State.QUEUED
        self.last_error, self._is_known_to_leader = error, False
        if isinstance(error, REFUSED_FOR_GOOD):
            entry.refusal = error
            return
        is_first = all(each.state is State.STORED for each in self._line if each.batch.number < number)
        if isinstance(error, InvalidProducerEpoch) or (isinstance(error, OutOfOrderSequence) and is_first):
            self.is_verified = False  # the leader and the table differ: the leader has to report
        self.pause(now_ms)

    def pause(self, now_ms: int) -> None:
        """Wait before the next attempt, for longer with each failure."""
        self._pause_ms = min(LONGEST_PAUSE_MS, max(FIRST_PAUSE_MS, 2 * self._pause_ms))
        self._not_before_ms = now_ms + self._pause_ms

    def may_try(self, now_ms: int) -> bool:
        """Whether no pause is left."""
        return now_ms >= self._not_before_ms

    # ------------------------------------------------------------ what the table has to learn

    def take_changes(self, changes: Changes, topic_id: str | None, producer_id: int) -> None:
        """Move finished, failed and dissolved batches from the lane to the changes.

        ``topic_id`` None: the topic is not known now, so nothing is numbered again.
        """
        while self._line and self._line[0].state is State.STORED:
            entry = self._line.popleft()
            changes.finished.append((entry.batch, entry.offset))
        if self._is_any(State.SENT) or topic_id is None or self.is_used_up(producer_id):
            return
        refused = self._refused()
        if refused is not None and self._line[0] is not refused:
            return  # those before it come first
        if refused is None and self._renew_above is None:
            return
        self._renew(changes, topic_id, producer_id, refused)

    def _renew(self, changes: Changes, topic_id: str, producer_id: int, refused: _Entry | None) -> None:
        """Dissolve all unacknowledged batches, so that their rows are numbered again in a higher producer epoch.

        None of them is stored, so no record is stored twice.
        """
        above = -1 if self._renew_above is None else self._renew_above
        before = self.position or Position(topic_id, producer_id if above < PRODUCER_EPOCH_MAX else -1, above, 0, 0)
        for entry in self._line:
            if entry.state is State.STORED:
                changes.finished.append((entry.batch, entry.offset))
            elif entry is refused and len(entry.batch.rows) == 1:
                error = entry.refusal
                changes.dissolved.append((entry.batch, True))
                changes.failed.append((entry.batch.rows[0], f"{type(error).__name__}: {error}"))
            else:
                changes.dissolved.append((entry.batch, entry is refused))
        self._line.clear()
        self.position = changes.positions[self.where] = before.renewed(topic_id, producer_id, epoch_above=above)
        self._renew_above, self._is_known_to_leader = None, False

    # ------------------------------------------------------------ inside

    def _is_any(self, state: State) -> bool:
        return any(entry.state is state for entry in self._line)

    def _refused(self) -> _Entry | None:
        return next((entry for entry in self._line if entry.refusal is not None), None)

    def _entry(self, number: int) -> _Entry:
        return next(entry for entry in self._line if entry.batch.number == number)
