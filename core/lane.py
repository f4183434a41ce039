"""One lane: the batches that one producer sends to one partition, so that each is stored once, and in order. Pure.

Raylog's own senders use it: the scheduler, forwarders, queues for their dead letters and copies, and the outbox. A
program's producer has the same rules in ``client/producer/delivery.py``. The rules:

- A batch has its sequence before it is sent. Its owner has written that down: a successor sends the same batch again.
- At most five batches are open: a leader recognises repeats of a producer's last five batches.
- The first batch goes alone, also after each failure. A leader that does not know the producer accepts any sequence, so
  a gap is noticed only behind a batch that is stored.
- After a failure the same batches go again, in order, after a pause that doubles.
- A batch that its target will never take stops the lane: nothing is sent until its owner has written down what becomes
  of it, see :class:`Remedy`. Of a refused batch nothing is stored, so the owner sends its records in smaller batches,
  until the one record that is refused is alone.
- The owner takes the open batches back before it gives their records other sequences or another producer epoch.

The owner writes down: what is sent, what is stored, and new sequences. Each owner does so in its own way.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Final, Generic, TypeVar

from raylog.base.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from raylog.base.invariants import require

BATCHES_MAX: Final = 5
"""Most open batches. A partition remembers so many batches of a producer (``storage``)."""
SEQUENCES: Final = 2**31
"""Sequences of a producer: the highest is followed by 0."""

BatchT = TypeVar("BatchT")


def sequence_after(sequence: int, records: int) -> int:
    """Return the sequence that follows so many records from ``sequence`` on."""
    return (sequence + records) % SEQUENCES


def split_at(records: int) -> int:
    """Return how many records of a refused batch go into the first of two batches; 0 = the one record is refused."""
    return records // 2


class Trouble(StrEnum):
    """Why a target did not take a batch."""

    UNREACHABLE = "unreachable"
    """The outcome is unknown (the target may have the batch, or get it later): the same batch is sent again."""
    DELETED = "deleted"
    """Its topic does not exist any more."""
    FORGOTTEN = "forgotten"
    """The target does not know the producer's last sequence: it lost records by an unclean leader election."""
    REFUSED = "refused"
    """It will never take this batch."""


def trouble_of(error: BaseException) -> Trouble:
    """Return what the error of a batch means.

    A leader that does not know the topic proves nothing, because it may not have received its metadata yet.
    RecordTooLarge and InvalidRecord count even if they are not remote: this end raises them, too. CorruptMessage counts
    although it is retriable: the batch was damaged before it was sent, and would be each time.
    """
    if isinstance(error, OutOfOrderSequence | InvalidProducerEpoch):
        return Trouble.FORGOTTEN
    if isinstance(error, UnknownTopicOrPartition) and not error.is_remote:
        return Trouble.DELETED
    if isinstance(error, RecordTooLarge | InvalidRecord):
        return Trouble.REFUSED
    if not isinstance(error, RaylogError) or not error.is_remote:
        return Trouble.UNREACHABLE
    is_final = not error.retriable or isinstance(error, CorruptMessage)
    return Trouble.REFUSED if is_final else Trouble.UNREACHABLE


class Remedy(StrEnum):
    """What has to be written down before the lane goes on behind a batch in trouble."""

    REROUTE = "reroute"
    """The target is deleted: the open batches have to go elsewhere."""
    REBASE = "rebase"
    """The open batches begin again at sequence 0 in another producer epoch."""
    SPLIT = "split"
    """The records of the first open batch go in smaller batches."""
    GIVE_UP = "give up"
    """The first open batch is one record that its target will never take."""


class _State(StrEnum):
    QUEUED = "queued"
    SENT = "sent"
    STORED = "stored"


class _Entry(Generic[BatchT]):
    """One open batch."""

    __slots__ = ("batch", "records", "sequence", "state", "trouble")

    def __init__(self, batch: BatchT, sequence: int, records: int) -> None:
        self.batch = batch
        self.sequence = sequence
        self.records = records
        self.state = _State.QUEUED
        self.trouble: Trouble | None = None
        """Why it is not sent again; never UNREACHABLE."""


class Lane(Generic[BatchT]):
    """See the module.

    Invariants: the open batches have consecutive sequences, the last one ends at ``next_sequence``; at most
    ``BATCHES_MAX`` are open; a batch that is under way has no trouble. An owner looks at all of its lanes after each
    event, so the numbers of batches that wait and are under way are kept beside the batches.
    """

    __slots__ = (
        "_entries",
        "_is_known",
        "_not_before_ms",
        "_pause_first_ms",
        "_pause_max_ms",
        "_pause_ms",
        "_queued",
        "_under_way",
        "_under_way_max",
        "is_stopped",
        "next_sequence",
    )

    def __init__(
        self, pause_first_ms: int, pause_max_ms: int, *, under_way_max: int = 1, next_sequence: int = 0
    ) -> None:
        """Begin with no open batch. ``under_way_max``: most batches that are sent and not answered."""
        self.next_sequence = next_sequence
        self._pause_first_ms = pause_first_ms
        self._pause_max_ms = pause_max_ms
        self._under_way_max = under_way_max
        self.is_stopped = False
        """Whether a batch will not be sent again as it is."""
        self._entries: deque[_Entry[BatchT]] = deque()
        self._queued = self._under_way = 0
        self._is_known = False
        """Whether the leader has stored a batch since the last failure."""
        self._pause_ms = 0
        self._not_before_ms = 0

    # ------------------------------------------------------------ what is open

    @property
    def room(self) -> int:
        """How many more batches may be opened."""
        return BATCHES_MAX - len(self._entries)

    @property
    def batches(self) -> list[BatchT]:
        """The open batches, in order: also the stored ones, until they are forgotten."""
        return [entry.batch for entry in self._entries]

    @property
    def unstored(self) -> list[BatchT]:
        """The open batches without an acknowledgement, in order."""
        return [entry.batch for entry in self._entries if entry.state is not _State.STORED]

    @property
    def is_under_way(self) -> bool:
        """Whether a batch is sent and not answered."""
        return self._under_way > 0

    @property
    def remedy(self) -> Remedy | None:
        """What the owner has to write down; None = nothing, or batches are under way or come before."""
        if not self.is_stopped or self._under_way:
            return None
        first = next((entry for entry in self._entries if entry.state is not _State.STORED), None)
        if first is None:
            return None
        match first.trouble:
            case Trouble.DELETED:
                return Remedy.REROUTE
            case Trouble.FORGOTTEN:
                return Remedy.REBASE
            case Trouble.REFUSED:
                return Remedy.SPLIT if split_at(first.records) else Remedy.GIVE_UP
        return None

    def sent(self, sequence: int) -> BatchT | None:
        """Return the batch under way that begins with this sequence; None = there is none."""
        entry = self._sent(sequence)
        return None if entry is None else entry.batch

    def add(self, batch: BatchT, records: int) -> None:
        """Open a batch; its sequences are those from ``next_sequence`` on."""
        require(records > 0, "each batch has a sequence of its own")
        require(self.room > 0, "a leader recognises all open batches of a lane")
        self._entries.append(_Entry(batch, self.next_sequence, records))
        self._queued += 1
        self.next_sequence = sequence_after(self.next_sequence, records)

    # ------------------------------------------------------------ sending

    def sendable(self, now_ms: int) -> list[BatchT]:
        """Return the batches to send now, in order; from now on they are under way."""
        if not self._queued:
            return []
        left = (self._under_way_max if self._is_known else 1) - self._under_way
        if left < 1 or not self.may_try(now_ms):
            return []
        found: list[BatchT] = []
        for entry in self._entries:
            if entry.trouble is not None or left < 1:
                break
            if entry.state is _State.QUEUED:
                entry.state = _State.SENT
                found.append(entry.batch)
                left -= 1
        self._queued -= len(found)
        self._under_way += len(found)
        return found

    def due_ms(self) -> int | None:
        """Return when the pause ends that a batch waits for; None = no batch waits for one."""
        if not self._queued or self._under_way or self.remedy is not None:
            return None
        return self._not_before_ms

    def may_try(self, now_ms: int) -> bool:
        """Return whether no pause is left. A clock that was set back makes no pause longer than the longest."""
        self._not_before_ms = min(self._not_before_ms, now_ms + self._pause_max_ms)
        return now_ms >= self._not_before_ms

    def stored(self, sequence: int) -> None:
        """Note that the batch with this sequence is acknowledged by all in-sync replicas."""
        entry = self._sent(sequence)
        require(entry is not None, "only what is under way is acknowledged")
        if entry is not None:
            entry.state = _State.STORED
            self._under_way -= 1
            self._is_known, self._pause_ms = True, 0

    def failed(self, sequence: int, trouble: Trouble, now_ms: int) -> None:
        """Note that the batch was not acknowledged: it is sent again after a pause, or waits for a remedy.

        FORGOTTEN says something of the first batch alone: in front of any other, a batch may be missing that failed.
        """
        entry = self._sent(sequence)
        require(entry is not None, "only what is under way can fail")
        if entry is None:
            return
        is_first = entry is next(each for each in self._entries if each.state is not _State.STORED)
        entry.state, self._is_known = _State.QUEUED, False
        self._queued, self._under_way = self._queued + 1, self._under_way - 1
        if trouble is not Trouble.UNREACHABLE and (is_first or trouble is not Trouble.FORGOTTEN):
            entry.trouble, self.is_stopped = trouble, True
        if trouble is not Trouble.REFUSED:
            self.pause(now_ms)

    def pause(self, now_ms: int) -> None:
        """Wait before the next attempt, twice as long as before."""
        self._pause_ms = min(self._pause_max_ms, max(self._pause_first_ms, 2 * self._pause_ms))
        self._not_before_ms = now_ms + self._pause_ms

    # ------------------------------------------------------------ what the owner has written down

    def forget(self, count: int) -> list[BatchT]:
        """Forget the first batches, of which the owner has written down that they are stored; return them."""
        forgotten = [self._entries.popleft() for _ in range(count)]
        self._count()
        return [entry.batch for entry in forgotten]

    def forget_stored(self) -> list[BatchT]:
        """Forget the stored batches in front of all others; return them."""
        first = next((at for at, entry in enumerate(self._entries) if entry.state is not _State.STORED), None)
        return self.forget(len(self._entries) if first is None else first)

    def take_back(self, next_sequence: int = 0) -> list[BatchT]:
        """Begin again at a sequence, with no open batch; return those that are not stored.

        For other batches than the refused ones no pause is needed.
        """
        taken = self.unstored
        if any(entry.trouble is Trouble.REFUSED for entry in self._entries):
            self._pause_ms = self._not_before_ms = 0
        self._entries.clear()
        self._count()
        self.next_sequence, self._is_known = next_sequence, False
        return taken

    def go_on(self) -> None:
        """Send what was forgotten again, unchanged: the owner has found that the target's last sequence fits."""
        self._is_known = False
        for entry in self._entries:
            if entry.trouble is Trouble.FORGOTTEN:
                entry.trouble = None
        self._count()

    # ------------------------------------------------------------ inside

    def _count(self) -> None:
        self._queued = sum(entry.state is _State.QUEUED for entry in self._entries)
        self._under_way = sum(entry.state is _State.SENT for entry in self._entries)
        self.is_stopped = any(entry.trouble is not None for entry in self._entries)

    def _sent(self, sequence: int) -> _Entry[BatchT] | None:
        found = (entry for entry in self._entries if entry.sequence == sequence and entry.state is _State.SENT)
        return next(found, None)
