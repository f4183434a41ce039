"""The way to one target partition: batches that are under way, and records that wait. Owned by the machine. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from raylog.core.invariants import require
from raylog.core.scheduling.events import Trouble
from raylog.core.scheduling.rows import Batch, LaneId, LaneState, Noted, Refused

OPEN_MAX: Final = 5
"""Most batches that are not noted as delivered. A partition remembers so many batches of a producer (``storage``), so
it recognises each of them if it is sent again."""
RETRY_FIRST_MS: Final = 20
RETRY_LAST_MS: Final = 2_000
UNKNOWN_PARTITION: Final = -1
SIZES_KEPT: Final = 4_096
"""Most sizes of waiting records in one lane's memory; the others are read again."""


class Lane:
    """One target.

    Invariants:

    - ``noted_sequence <= sequence of each batch < next_sequence``, ascending and without a hole.
    - ``len(batches) <= OPEN_MAX``. Before the first batch of an epoch is noted there is no second, because a partition
      accepts any sequence as the first one of a producer that it does not know.
    - ``sum(parts) <= len(waiting)``; no part is 0.
    """

    __slots__ = (
        "batches",
        "delivered_sequence",
        "epoch",
        "id",
        "limit_bytes",
        "next_sequence",
        "noted_sequence",
        "parts",
        "retry_at_ms",
        "retry_ms",
        "sending",
        "sizes",
        "topic",
        "trouble",
        "waiting",
    )

    def __init__(self, topic: str, lane: LaneId, epoch: int = 0) -> None:
        """Begin an epoch in which nothing was sent."""
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
        self.parts: deque[int] = deque()
        """How many of the first waiting keys each of the next batches has: halves of refused batches, and batches that
        stood behind one."""
        self.sizes: dict[int, int] = {}
        """Bytes of the waiting records, as far as this leader knows them."""
        self.limit_bytes = 0
        """The most bytes that the target's topic takes in one batch; 0 = not known to this leader."""
        self.trouble: Trouble | None = None
        """Why the target did not take the batch, if a row has to decide what becomes of it."""
        self.sending: int | None = None
        """Base sequence of the batch that is under way."""
        self.retry_at_ms = 0
        self.retry_ms = RETRY_FIRST_MS

    @property
    def has_room(self) -> bool:
        """Whether a round may open another batch."""
        if self.id[1] == UNKNOWN_PARTITION or len(self.batches) >= OPEN_MAX:
            return False
        return self.next_sequence == 0 or self.noted_sequence > 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is on the way or waits."""
        return not self.batches and not self.waiting

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
        self.batches.append(batch)
        self.next_sequence += len(batch.keys)
        return True

    def to_send(self, now_ms: int) -> Batch | None:
        """Return the batch to send now, and note that it is under way."""
        if self.sending is not None or self.trouble is not None or now_ms < self.retry_at_ms:
            return None
        for batch in self.batches:
            if batch.base_sequence >= self.delivered_sequence:
                self.sending = batch.base_sequence
                return batch
        return None

    def answered(self, now_ms: int, *, is_delivered: bool) -> None:
        """Note whether the target took the batch under way; if not, the next attempt waits (exponential backoff)."""
        base, self.sending = self.sending, None
        if not is_delivered:
            self.retry_at_ms, self.retry_ms = now_ms + self.retry_ms, min(2 * self.retry_ms, RETRY_LAST_MS)
            return
        self.retry_at_ms, self.retry_ms = 0, RETRY_FIRST_MS
        batch = next(batch for batch in self.batches if batch.base_sequence == base)
        self.delivered_sequence = batch.base_sequence + len(batch.keys)

    @property
    def note_due(self) -> Noted | None:
        """What the next round may note; None = nothing new was delivered."""
        if self.delivered_sequence > self.noted_sequence:
            return Noted(self.id, self.epoch, self.delivered_sequence)
        return None

    def noted(self, note: Noted) -> Iterable[int]:
        """Apply a note from the log; return the keys that leave the lane."""
        if note.epoch != self.epoch:
            return ()
        left: list[int] = []
        self.noted_sequence = max(self.noted_sequence, note.sequence)
        self.delivered_sequence = max(self.delivered_sequence, note.sequence)
        while self.batches and self.batches[0].base_sequence < self.noted_sequence:
            left += self.batches.popleft().keys
        return left

    def below(self, sequence: int) -> list[int]:
        """Return the keys of the batches below a sequence, which the target has."""
        return [key for batch in self.batches if batch.base_sequence < sequence for key in batch.keys]

    def rebase(self, epoch: int, delivered: int) -> None:
        """Begin an epoch: the batches that were not delivered get new sequences."""
        kept = [batch.keys for batch in self.batches if batch.base_sequence >= delivered]
        self._begin(epoch)
        self._wait_first(kept)

    def halve(self, row: Refused) -> tuple[int, ...]:
        """Begin an epoch in which the halves of a refused batch come first, then the batches that stood behind it.

        A refused batch of one record has no halves: it is left out, and its key is returned as the one to blame.
        """
        parts: list[tuple[int, ...]] = []
        blamed: tuple[int, ...] = ()
        for batch in self.batches:
            if batch.base_sequence == row.refused_sequence:
                half = len(batch.keys) // 2
                if half:
                    parts += [batch.keys[:half], batch.keys[half:]]
                else:
                    blamed = batch.keys
            elif batch.base_sequence >= row.delivered_sequence:
                parts.append(batch.keys)
        self._begin(row.epoch)
        self.retry_at_ms, self.retry_ms = 0, RETRY_FIRST_MS  # another batch comes next: it needs no backoff
        self._wait_first(parts)
        return blamed

    def _begin(self, epoch: int) -> None:
        """Begin an epoch, in which nothing was sent."""
        self.epoch, self.next_sequence, self.noted_sequence, self.delivered_sequence = epoch, 0, 0, 0
        self.batches.clear()
        self.sending = self.trouble = None

    def _wait_first(self, parts: list[tuple[int, ...]]) -> None:
        """Open the first of these batches, and put the keys of the others in front of ``waiting``.

        Only one is opened: in every epoch the first batch goes alone.
        """
        for keys in reversed(parts[1:]):
            self.waiting.extendleft(reversed(keys))
            self.parts.appendleft(len(keys))
        if parts:
            self.opened(Batch(self.topic, self.id, self.epoch, 0, parts[0]))

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
            tuple(self.parts),
        )

    @classmethod
    def restored(cls, state: LaneState) -> Lane:
        """Return the lane of a checkpoint."""
        lane = cls(state.topic, state.lane, state.epoch)
        lane.next_sequence, lane.noted_sequence = state.next_sequence, state.noted_sequence
        lane.delivered_sequence = state.noted_sequence
        lane.batches.extend(state.batches)
        lane.waiting.extend(state.waiting)
        lane.parts.extend(state.parts)
        return lane
