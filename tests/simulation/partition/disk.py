"""The virtual disk of one replica: a log whose unsynced tail may be lost, and slow syncs.

One entry is one batch of one record, so that offsets and positions agree. The contents of a batch belong to the storage
engine and are tested there. The producer state is the storage engine's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from raylog.base.epochs import EpochHistory
from raylog.base.ids import LeaderEpoch, Offset
from raylog.storage.batch.header import BatchHeader
from raylog.storage.log.producer_state import Duplicate, ProducerState

_CHAIN_MASK = (1 << 61) - 1
NO_PRODUCER_ID = -1


class Entry(NamedTuple):
    """One stored batch. ``chain`` hashes it with everything before it: equal chains mean equal logs up to here."""

    epoch: int
    value: int
    producer: int
    sequence: int
    chain: int


def chained(previous: int, epoch: int, value: int) -> int:
    """Return the chain hash of an entry that follows the one with chain ``previous``."""
    return hash((previous, epoch, value)) & _CHAIN_MASK


def header_of(offset: int, entry: Entry) -> BatchHeader:
    """Return the batch header that the storage engine's producer state needs."""
    return BatchHeader(
        base_offset=offset,
        batch_length=49,
        partition_leader_epoch=entry.epoch,
        magic=77,
        crc=0,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=entry.producer,
        producer_epoch=0,
        base_sequence=entry.sequence,
        record_count=1,
    )


class VirtualLog:
    """One partition folder. Survives the processes that open it."""

    def __init__(self, identity: str = "", replaces: VirtualLog | None = None) -> None:
        """Create an empty folder, perhaps in place of a lost one."""
        self.identity = identity
        self.restored = False
        self.opened = False
        """True once some life has opened the folder: it is not new for later lives."""
        self.lost = replaces
        """The folder's predecessor; other replicas may rely on it until they learn of the loss."""
        self.incarnation = -1
        """The last life registered on this folder."""
        self.start = 0
        self.entries: list[Entry] = []
        self.durable_end = 0
        self.kept_watermark = 0
        """The file with the high watermark; replaced as a whole, so that a crash leaves the old or the new one."""
        self.writes_through = False
        self.truncations = 0
        """A sync that began before the last truncation reports nothing."""
        self.epochs = EpochHistory()
        self._assigned: set[int] = set()
        self.producers = ProducerState()
        self._has_no_producers = False
        """Those of the entries before the start are not known."""

    @property
    def lacks_producers(self) -> bool:
        """As the log of the storage engine has it."""
        return self._has_no_producers and not self.entries

    def adopt_producers(self, snapshot: bytes) -> None:
        """Take the leader's, durably."""
        self.producers = ProducerState.from_bytes(snapshot)
        self._has_no_producers = False

    @property
    def end(self) -> int:
        """Offset of the next entry."""
        return self.start + len(self.entries)

    def promised_end(self, incarnation: int) -> int:
        """Return the durable end, or that of a lost log, where the life of that incarnation reported the latter."""
        end, lost = self.durable_end, self.lost
        while lost is not None and incarnation <= lost.incarnation:
            end, lost = max(end, lost.durable_end), lost.lost
        return end

    def entry(self, offset: int) -> Entry | None:
        """Return the entry at an offset, or None outside the log."""
        index = offset - self.start
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def chain_before(self, offset: int) -> int | None:
        """Return the chain hash of the entry before ``offset``; None when the log does not reach back that far."""
        if offset == 0:
            return 0
        before = self.entry(offset - 1)
        return None if before is None else before.chain

    def recover(self) -> None:
        """Do the work of opening: the kept part is synced."""
        self.durable_end = self.end
        self.kept_watermark = min(self.kept_watermark, self.end)

    def keep_watermark(self, watermark: int) -> None:
        """Write the high watermark."""
        self.kept_watermark = watermark

    def check_producer(self, producer: int, sequence: int) -> Duplicate | None:
        """Apply the storage engine's idempotence rules; raises its errors."""
        return self.producers.check(header_of(self.end, Entry(0, 0, producer, sequence, 0)))

    def assign_epoch(self, epoch: int, start: int) -> None:
        """Write an epoch into the checkpoint, durably."""
        self.epochs.assign(LeaderEpoch(epoch), Offset(start))
        self._assigned.add(epoch)

    def append(self, entries: Iterable[Entry], now_ms: int) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """Append, and return the epochs that begin in the appended entries. Durable only if all writes are."""
        begun: list[tuple[LeaderEpoch, Offset]] = []
        for entry in entries:
            epoch, offset = LeaderEpoch(entry.epoch), Offset(self.end)
            if epoch > self.epochs.latest:
                begun.append((epoch, offset))
                self.epochs.assign(epoch, offset)
            self.producers.apply(header_of(offset, entry), now_ms, None)
            self.entries.append(entry)
        if self.writes_through:
            self.durable_end = self.end
        return tuple(begun)

    def read(self, offset: int, upper: int, limit: int) -> list[Entry]:
        """Return at most ``limit`` entries from ``offset`` on, below ``upper``."""
        first = offset - self.start
        return self.entries[first : min(upper - self.start, first + limit)]

    def truncate(self, to: int, now_ms: int) -> None:
        """Truncate to ``to``; durable, and so is the rest."""
        self.kept_watermark = min(self.kept_watermark, to)
        del self.entries[to - self.start :]
        self.epochs.truncate_end(Offset(to))
        self.durable_end = self.end
        self.truncations += 1
        self._rebuild_producers(now_ms)

    def reset(self, start: int) -> None:
        """Discard everything and restart at ``start``; durable. Producers are then unknown until the leader's come."""
        self.start = self.durable_end = start
        self.kept_watermark = min(self.kept_watermark, start)
        self.entries.clear()
        self.epochs.truncate_end(0)
        self.truncations += 1
        self.producers = ProducerState()
        self._has_no_producers = start > 0

    def advance_start(self, start: int) -> None:
        """Drop the entries below ``start``. The producer state keeps their effect, as its snapshots do."""
        del self.entries[: start - self.start]
        self.start = start
        self.epochs.truncate_start(Offset(start))

    def crash(self, draw: random.Random, survives: float, now_ms: int) -> int:
        """Lose the unsynced tail, or some of it; returns the number of lost entries."""
        lost = self.end - self.durable_end
        if lost and draw.random() < survives:
            lost = draw.randint(0, lost)
        if lost:
            to = self.end - lost
            del self.entries[to - self.start :]
            self._forget_epochs(to)
            self._rebuild_producers(now_ms)
        self.truncations += 1
        return lost

    def _forget_epochs(self, end: int) -> None:
        """Recovery keeps an epoch that begins at the end only if the checkpoint, not a lost record, has it."""
        kept = [
            (epoch, start)
            for epoch, start in self.epochs.entries
            if start < end or (start == end and epoch in self._assigned)
        ]
        self.epochs = EpochHistory(kept)

    def _rebuild_producers(self, now_ms: int) -> None:
        """Replay the rest. Producers of entries dropped by retention keep their old state, as in a snapshot."""
        kept = {entry.producer for entry in self.entries}
        older = {
            producer: state.copy()
            for producer, state in self.producers.producers.items()
            if producer not in kept and any(batch.end_offset <= self.start for batch in state.batches)
        }
        self.producers = ProducerState()
        for producer, state in older.items():
            state.batches = [batch for batch in state.batches if batch.end_offset <= self.start]
            self.producers.producers[producer] = state
        for index, entry in enumerate(self.entries):
            self.producers.apply(header_of(self.start + index, entry), now_ms, None)
