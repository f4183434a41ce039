"""One target partition: the batches of committed rounds, and the records that wait. Owned by the machine. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from raylog.base.invariants import require
from raylog.core.lane import SEQUENCES, Lane, split_at
from raylog.core.scheduling.events import Delivered, NotDelivered
from raylog.core.scheduling.rows import Acked, Batch, Keys, LaneId, LaneState, Refused

RETRY_FIRST_MS: Final = 20
RETRY_LAST_MS: Final = 2_000
UNKNOWN_PARTITION: Final = -1
SIZES_KEPT: Final = 4_096
"""Most sizes of waiting records in one lane's memory; the others are read again."""


class TargetLane:
    """One target. Sequences in rows do not wrap around; those in batches for the target do.

    Invariants:

    - ``acked_sequence <= sequence of each batch < next_sequence``, ascending and without a hole.
    - Before the first batch of an epoch is acknowledged there is no second, because a partition accepts any sequence as
      the first one of a producer that it does not know.
    - ``sum(parts) <= len(waiting)``; no part is 0.
    """

    __slots__ = ("acked_sequence", "epoch", "id", "limit_bytes", "open", "parts", "sizes", "topic", "waiting")

    def __init__(self, topic: str, lane: LaneId, epoch: int = 0) -> None:
        """Begin an epoch in which nothing was sent."""
        self.topic = topic
        self.id = lane
        self.epoch = epoch
        self.acked_sequence = 0
        """The target has everything below, and the log says so."""
        self.open: Lane[Batch] = Lane(RETRY_FIRST_MS, RETRY_LAST_MS)
        """Committed batches that are not acknowledged, the delivered ones too."""
        self.waiting: deque[int] = deque()
        """Keys that are due and in no batch."""
        self.parts: deque[int] = deque()
        """How many of the first waiting keys each of the next batches has: halves of refused batches, and batches that
        stood behind one."""
        self.sizes: dict[int, int] = {}
        """Bytes of the waiting records, as far as this leader knows them."""
        self.limit_bytes = 0
        """The most bytes that the target's topic takes in one batch; 0 = not known to this leader."""

    @property
    def batches(self) -> list[Batch]:
        """Committed batches that are not acknowledged, the delivered ones too."""
        return self.open.batches

    @property
    def next_sequence(self) -> int:
        """The sequence of the next batch."""
        return _end(batches[-1]) if (batches := self.batches) else self.acked_sequence

    @property
    def delivered_sequence(self) -> int:
        """The target has everything below, as this leader knows."""
        return unstored[0].base_sequence if (unstored := self.open.unstored) else self.next_sequence

    @property
    def has_room(self) -> bool:
        """Whether a round may open another batch."""
        if self.id[1] == UNKNOWN_PARTITION or self.open.room < 1:
            return False
        return self.next_sequence == 0 or self.acked_sequence > 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is on the way or waits."""
        return not self.waiting and not self.batches

    def no_longer_waits(self, keys: Iterable[int]) -> set[int]:
        """Remove keys from ``waiting``; return those that were in it."""
        wanted = set(keys)
        left = wanted.intersection(islice(self.waiting, len(wanted)))
        if len(left) < len(wanted):  # not all of them are at the front
            left = wanted.intersection(self.waiting)
        if not left:
            return left
        if self.parts:
            order = iter(self.waiting)
            counts = (sum(key not in left for key in islice(order, part)) for part in self.parts)
            self.parts = deque(count for count in counts if count)
        if left == wanted and left == set(islice(self.waiting, len(left))):
            for _ in left:
                self.waiting.popleft()
        else:
            self.waiting = deque(key for key in self.waiting if key not in left)
        for key in left:
            self.sizes.pop(key, None)
        return left

    def parked(self, keys: Iterable[int], sizes: Mapping[int, int], limit_bytes: int) -> None:
        """Add keys to the end of ``waiting``; ``sizes`` has those that are known, ``limit_bytes`` is 0 if not known."""
        self.limit_bytes = limit_bytes or self.limit_bytes
        for key in keys:
            self.waiting.append(key)
            if key in sizes and len(self.sizes) < SIZES_KEPT:
                self.sizes[key] = sizes[key]

    def measured(self, key: int, size_bytes: int) -> None:
        """Note the size of a waiting record."""
        if len(self.sizes) >= 2 * SIZES_KEPT:
            self.sizes.clear()  # those that are needed are read again
        self.sizes[key] = size_bytes

    def unsized(self, most: int, limit_bytes: int) -> list[int]:
        """Return the keys of the next batch whose sizes have to be read.

        The batch has at most ``most`` records and ``limit_bytes``.
        """
        if not self.has_room or self.parts:
            return []
        found: list[int] = []
        total = 0
        for key in islice(self.waiting, most):
            size = self.sizes.get(key)
            if size is None:
                found.append(key)
                continue
            total += size
            if total > limit_bytes:
                break
        return found

    def opened(self, batch: Batch) -> bool:
        """Take a batch of a committed round; False = it is of another epoch or was opened before, and has no effect."""
        if batch.epoch != self.epoch or batch.base_sequence < self.next_sequence:
            return False
        require(batch.base_sequence == self.next_sequence, "sequences of a target have no hole")
        self.open.add(batch, len(batch.keys))
        return True

    def answered(self, event: Delivered | NotDelivered) -> Batch | None:
        """Note the answer to the batch under way, and return that batch; None = it is to an earlier one."""
        sequence = event.base_sequence % SEQUENCES
        batch = self.open.sent(sequence) if event.epoch == self.epoch else None
        if batch is None:
            return None
        if isinstance(event, Delivered):
            self.open.stored(sequence)
        else:
            self.open.failed(sequence, event.trouble, event.now_ms)
        return batch

    @property
    def ack_due(self) -> Acked | None:
        """What the next round may acknowledge; None = nothing new was delivered."""
        if not self.open.batches or (delivered := self.delivered_sequence) == self.acked_sequence:
            return None
        return Acked(*self.id, self.epoch, delivered)

    def acked(self, ack: Acked) -> Iterable[int]:
        """Apply an acknowledgement from the log; return the keys that leave the lane."""
        if ack.epoch != self.epoch:
            return ()
        done = self.done(ack.sequence)
        self.acked_sequence = max(self.acked_sequence, ack.sequence)
        return done

    def done(self, sequence: int) -> list[int]:
        """Forget the batches below a sequence, which the target has; return their keys."""
        count = sum(batch.base_sequence < sequence for batch in self.batches)
        return [key for batch in self.open.forget(count) for key in batch.keys]

    def rebase(self, epoch: int) -> None:
        """Begin an epoch: the open batches get new sequences."""
        self._wait_first([batch.keys for batch in self._begin(epoch)])

    def halve(self, row: Refused) -> Sequence[int]:
        """Begin an epoch in which the halves of a refused batch come first, then the batches that stood behind it.

        A refused batch of one record has no halves: it is left out, and its key is returned as the one to blame.
        """
        parts: list[Sequence[int]] = []
        blamed: Sequence[int] = ()
        for batch in self._begin(row.epoch):
            if batch.base_sequence != row.refused_sequence:
                parts.append(batch.keys)
            elif half := split_at(len(batch.keys)):
                parts += [batch.keys[:half], batch.keys[half:]]
            else:
                blamed = batch.keys
        self._wait_first(parts)
        return blamed

    def _begin(self, epoch: int) -> list[Batch]:
        """Begin an epoch, in which nothing was sent; return the batches that were open."""
        batches = self.batches
        self.open.take_back()
        self.epoch, self.acked_sequence = epoch, 0
        return batches

    def _wait_first(self, parts: list[Sequence[int]]) -> None:
        """Open the first of these batches, and put the keys of the others in front of ``waiting``.

        Only one is opened: in every epoch the first batch goes alone.
        """
        for keys in reversed(parts[1:]):
            self.waiting.extendleft(reversed(keys))
            self.parts.appendleft(len(keys))
        if parts:
            self.opened(Batch(self.topic, *self.id, self.epoch, 0, Keys(parts[0])))

    def state(self) -> LaneState:
        """Return what a checkpoint keeps, besides ``parts``."""
        return LaneState(
            self.topic,
            *self.id,
            self.epoch,
            self.next_sequence,
            self.acked_sequence,
            tuple(self.batches),
            Keys(self.waiting),
        )

    @classmethod
    def restored(cls, state: LaneState, parts: Iterable[int]) -> TargetLane:
        """Return the lane of a checkpoint."""
        lane = cls(state.topic, state.lane, state.epoch)
        lane.acked_sequence = state.acked_sequence
        lane.open.next_sequence = state.acked_sequence % SEQUENCES
        for batch in state.batches:
            lane.open.add(batch, len(batch.keys))
        lane.waiting.extend(state.waiting)
        lane.parts.extend(parts)
        return lane


def _end(batch: Batch) -> int:
    return batch.base_sequence + len(batch.keys)
