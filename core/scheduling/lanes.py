"""The way to one target partition: which batches are on it, and what waits for it. Owned by the machine. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from raylog.core.invariants import require
from raylog.core.scheduling.rows import Batch, LaneId, LaneState, Noted

OPEN_MAX: Final = 5
"""Batches that are not noted as delivered: a partition remembers so many of a producer (``storage``), and knows each
of them again."""
RETRY_FIRST_MS: Final = 20
RETRY_LAST_MS: Final = 2_000
UNKNOWN_PARTITION: Final = -1


class Lane:
    """One target.

    Invariants:

    - ``noted_sequence <= sequence of each batch < next_sequence``, ascending and without a hole.
    - ``len(batches) <= OPEN_MAX``; before the first batch of an epoch is noted there is no second, because a partition
      takes any first sequence of a producer that it does not know.
    """

    __slots__ = (
        "batches",
        "delivered_sequence",
        "epoch",
        "id",
        "next_sequence",
        "noted_sequence",
        "retry_at_ms",
        "retry_ms",
        "sending",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, lane: LaneId, epoch: int = 0) -> None:
        """Nothing was sent yet in this epoch."""
        self.topic = topic
        self.id = lane
        self.epoch = epoch
        self.next_sequence = 0
        self.noted_sequence = 0
        """The target has everything below, and the log says so."""
        self.delivered_sequence = 0
        """The target has everything below, as this leader knows."""
        self.batches: deque[Batch] = deque()
        """Committed batches that are not noted, the delivered ones too."""
        self.waiting: deque[int] = deque()
        """Keys that are due and in no batch."""
        self.sending: int | None = None
        """Base sequence of the batch that is under way."""
        self.retry_at_ms = 0
        self.retry_ms = RETRY_FIRST_MS

    @property
    def has_room(self) -> bool:
        """Whether another batch may be decided."""
        if self.id[1] == UNKNOWN_PARTITION or len(self.batches) >= OPEN_MAX:
            return False
        return self.next_sequence == 0 or self.noted_sequence > 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is on the way or waits."""
        return not self.batches and not self.waiting

    def no_longer_waits(self, keys: Iterable[int]) -> set[int]:
        """Remove keys from what waits; returns those that did."""
        left = set(self.waiting).intersection(keys)
        if left:
            self.waiting = deque(key for key in self.waiting if key not in left)
        return left

    def opened(self, batch: Batch) -> bool:
        """Take a batch of a committed round; False for one that was decided again without effect."""
        if batch.epoch != self.epoch or batch.base_sequence < self.next_sequence:
            return False
        require(batch.base_sequence == self.next_sequence, "sequences of a target have no hole")
        self.batches.append(batch)
        self.next_sequence += len(batch.keys)
        return True

    def to_send(self, now_ms: int) -> Batch | None:
        """Return the batch to send now, and note that it is under way."""
        if self.sending is not None or now_ms < self.retry_at_ms:
            return None
        for batch in self.batches:
            if batch.base_sequence >= self.delivered_sequence:
                self.sending = batch.base_sequence
                return batch
        return None

    def answered(self, now_ms: int, *, is_delivered: bool) -> None:
        """Note what became of the batch under way."""
        base, self.sending = self.sending, None
        if not is_delivered:
            self.retry_at_ms, self.retry_ms = now_ms + self.retry_ms, min(2 * self.retry_ms, RETRY_LAST_MS)
            return
        self.retry_at_ms, self.retry_ms = 0, RETRY_FIRST_MS
        batch = next(batch for batch in self.batches if batch.base_sequence == base)
        self.delivered_sequence = batch.base_sequence + len(batch.keys)

    @property
    def note_due(self) -> Noted | None:
        """What the next row may note."""
        if self.delivered_sequence > self.noted_sequence:
            return Noted(self.id, self.epoch, self.delivered_sequence)
        return None

    def noted(self, note: Noted) -> Iterable[int]:
        """Take a note of the log; returns the keys that leave the lane."""
        if note.epoch != self.epoch:
            return ()
        left: list[int] = []
        self.noted_sequence = max(self.noted_sequence, note.sequence)
        self.delivered_sequence = max(self.delivered_sequence, note.sequence)
        while self.batches and self.batches[0].base_sequence < self.noted_sequence:
            left += self.batches.popleft().keys
        return left

    def rebase(self, epoch: int, delivered: int, without: int = -1) -> Iterable[int]:
        """Begin an epoch: the batches that were not delivered are numbered again.

        Returns the keys of the batch with the base sequence ``without``, which is left out.
        """
        left_out: tuple[int, ...] = ()
        kept: list[Batch] = []
        for batch in self.batches:
            if batch.base_sequence == without:
                left_out = batch.keys
            elif batch.base_sequence >= delivered:
                kept.append(batch)
        self.epoch, self.next_sequence, self.noted_sequence, self.delivered_sequence = epoch, 0, 0, 0
        self.batches.clear()
        self.sending = None
        # One batch at first, as in every epoch: the others wait in front of what waits already.
        for batch in reversed(kept[1:]):
            self.waiting.extendleft(reversed(batch.keys))
        if kept:
            self.opened(Batch(self.topic, self.id, epoch, 0, kept[0].keys))
        return left_out

    def state(self) -> LaneState:
        """Return what a checkpoint keeps."""
        return LaneState(
            self.topic,
            self.id,
            self.epoch,
            self.next_sequence,
            self.noted_sequence,
            tuple(self.batches),
            tuple(self.waiting),
        )

    @classmethod
    def restored(cls, state: LaneState) -> Lane:
        """Return the lane of a checkpoint."""
        lane = cls(state.topic, state.lane, state.epoch)
        lane.next_sequence, lane.noted_sequence = state.next_sequence, state.noted_sequence
        lane.delivered_sequence = state.noted_sequence
        lane.batches.extend(state.batches)
        lane.waiting.extend(state.waiting)
        return lane
