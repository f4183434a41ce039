"""The batches of one partition that are in the table and not yet marked, and which of them may be sent now.

A batch keeps its sequence over a crash, because it is written down. The rules are those of `raylog.core.lane`; of the
outbox alone are these:

- Before the first batch of a session the leader has to report what it knows of the producer; also when a batch does not
  follow from that. If the report does not fit what is in the table (a database that was restored from a backup, a
  partition that has lost records), there is a higher producer epoch, and what is not acknowledged is numbered again.
- A batch that the topic refuses for good is taken apart: each of its rows goes in a batch of its own, and a row that is
  refused alone has failed. Batches sent behind it were refused as out of order, so they are numbered again as well.

Pure. Invariant: the batches have consecutive numbers; those not acknowledged have the producer epoch of the position.
"""

from __future__ import annotations

from typing import Final

from raylog.base.errors import (
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
from raylog.base.ids import TopicPartition
from raylog.base.invariants import require
from raylog.client.producer.resumed import KnownSequence
from raylog.core.lane import BATCHES_MAX, Lane, Remedy, Trouble
from raylog.outbox.model import (
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
REFUSALS: Final = (Remedy.SPLIT, Remedy.GIVE_UP)
FIRST_PAUSE_MS = 50
LONGEST_PAUSE_MS = 5_000


class OutboxLane:
    """See the module. Owned by the session."""

    def __init__(self, where: TopicPartition, position: Position | None) -> None:
        """Begin without knowing what the leader has. ``position`` None: the table has no row of this lane."""
        self.where = where
        self.position = position
        self.last_error: RaylogError | None = None
        self._lane: Lane[OutboxBatch] = Lane(FIRST_PAUSE_MS, LONGEST_PAUSE_MS, under_way_max=BATCHES_MAX)
        """The unmarked batches."""
        self._offsets: dict[int, int] = {}
        """By number, of each acknowledged batch: the offset of its first record."""
        self._refusals: dict[int, RaylogError] = {}
        self._is_reported = False
        self._renew_above: int | None = None
        """Not None: the lane takes an epoch above this one, and above its own, before it sends again."""

    # ------------------------------------------------------------ what is there

    def load(self, batch: OutboxBatch) -> None:
        """Take in a batch from the table: one of an earlier session, or a new one."""
        before = self._lane.batches
        require(not before or before[-1].number + 1 == batch.number, "numbers are consecutive")
        self._lane.next_sequence = batch.first_sequence
        self._lane.add(batch, len(batch.rows))

    @property
    def unmarked(self) -> list[OutboxBatch]:
        """The batches that are not marked yet, in order."""
        return self._lane.batches

    @property
    def wants_verification(self) -> bool:
        """Whether the leader has to report what it knows, and no batch on its way could change the answer."""
        if self._lane.is_under_way:
            return False
        return not self._is_reported or (self._renew_above is None and self._lane.remedy is Remedy.REBASE)

    def is_used_up(self, producer_id: int) -> bool:
        """Whether the lane has no further epoch under this producer id, and so needs another one."""
        position, above = self.position, -1 if self._renew_above is None else self._renew_above
        if position is None:
            return False
        return position.producer_id == producer_id and max(position.producer_epoch, above) >= PRODUCER_EPOCH_MAX

    def room(self, topic_id: str, producer_id: int) -> Room:
        """How many more batches the lane may take, and the position of the first of them."""
        position = self.position
        if not self._is_reported or self._renew_above is not None or self._lane.is_stopped:
            return NO_ROOM
        if position is None:
            position = Position(topic_id, producer_id, 0, 0, 0)
        if position.topic_id != topic_id or position.next_sequence > SEQUENCE_LIMIT:
            if self._lane.batches or self.is_used_up(producer_id):
                return NO_ROOM
            position = position.renewed(topic_id, producer_id)
        return Room(self._lane.room, position)

    # ------------------------------------------------------------ what the leader knows

    def verify(self, known: KnownSequence | None, now_ms: int) -> None:
        """Take in what the leader knows of the lane's producer; None = it does not know the producer."""
        require(self.wants_verification, "the leader reports while nothing is on its way")
        self._is_reported = True
        self._lane.go_on()
        if known is not None and not self._follows(known):
            self._renew_above = known.producer_epoch

    def _follows(self, known: KnownSequence) -> bool:
        """Whether what the leader knows fits the table: its last sequence ends where one of the batches begins."""
        position = self.position
        if position is None or known.producer_epoch > position.producer_epoch:
            return False  # the table has lost what was sent
        starts = {batch.first_sequence for batch in self._lane.batches} | {position.next_sequence}
        if known.producer_epoch < position.producer_epoch:
            return 0 in starts  # nothing of this epoch is marked, or the leader has lost it
        return known.last_sequence + 1 in starts

    def recreated(self) -> None:
        """The topic was deleted and created again: unacknowledged batches go to the new one, in a new epoch."""
        if self._lane.batches and self._renew_above is None:
            self._renew_above = -1

    # ------------------------------------------------------------ sending

    def sendable(self, now_ms: int) -> list[OutboxBatch]:
        """The batches to send now, in order; from now on they count as on their way."""
        if not self._is_reported or self._renew_above is not None:
            return []
        return self._lane.sendable(now_ms)

    def due_ms(self) -> int | None:
        """When the pause ends that a batch waits for; None = no batch waits for one."""
        return self._lane.due_ms() if self._is_reported else None

    def stored(self, number: int, offset: int) -> None:
        """A batch is acknowledged by all in-sync replicas."""
        self._lane.stored(self._batch(number).first_sequence)
        self._offsets[number], self.last_error = offset, None

    def failed(self, number: int, error: RaylogError, now_ms: int) -> None:
        """An attempt has failed; the batch is sent again, or taken apart."""
        if isinstance(error, DuplicateSequence):  # stored so long ago that the leader has forgotten the offset
            self.stored(number, -1)
            return
        self.last_error = error
        trouble = Trouble.UNREACHABLE
        if isinstance(error, REFUSED_FOR_GOOD):
            trouble, self._refusals[number] = Trouble.REFUSED, error
        elif isinstance(error, InvalidProducerEpoch | OutOfOrderSequence):
            trouble = Trouble.FORGOTTEN
        self._lane.failed(self._batch(number).first_sequence, trouble, now_ms)

    def pause(self, now_ms: int) -> None:
        """Wait before the next attempt, for longer with each failure."""
        self._lane.pause(now_ms)

    def may_try(self, now_ms: int) -> bool:
        """Whether no pause is left."""
        return self._lane.may_try(now_ms)

    # ------------------------------------------------------------ what the table has to learn

    def take_changes(self, changes: Changes, topic_id: str | None, producer_id: int) -> None:
        """Move finished, failed and dissolved batches from the lane to the changes.

        ``topic_id`` None: the topic is not known now, so nothing is numbered again.
        """
        changes.finished += [(batch, self._offsets.pop(batch.number)) for batch in self._lane.forget_stored()]
        if self._lane.is_under_way or topic_id is None or self.is_used_up(producer_id):
            return
        if self._renew_above is not None or self._lane.remedy in REFUSALS:
            self._renew(changes, topic_id, producer_id)

    def _renew(self, changes: Changes, topic_id: str, producer_id: int) -> None:
        """Dissolve all unacknowledged batches, so that their rows are numbered again in a higher producer epoch.

        None of them is stored, so no record is stored twice.
        """
        above = -1 if self._renew_above is None else self._renew_above
        before = self.position or Position(topic_id, producer_id if above < PRODUCER_EPOCH_MAX else -1, above, 0, 0)
        remedy, batches = self._lane.remedy, self._lane.batches
        refused = self._lane.unstored[0] if remedy in REFUSALS else None
        self._lane.take_back()
        for batch in batches:
            if batch.number in self._offsets:
                changes.finished.append((batch, self._offsets[batch.number]))
                continue
            changes.dissolved.append((batch, batch is refused))
            if batch is refused and remedy is Remedy.GIVE_UP:
                error = self._refusals[batch.number]
                changes.failed.append((batch.rows[0], f"{type(error).__name__}: {error}"))
        self._offsets.clear()
        self._refusals.clear()
        self.position = changes.positions[self.where] = before.renewed(topic_id, producer_id, epoch_above=above)
        self._renew_above = None

    def _batch(self, number: int) -> OutboxBatch:
        return next(batch for batch in self._lane.batches if batch.number == number)
