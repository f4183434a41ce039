"""The leader epochs of a log and their file: a change is written first, durably, and only then visible.

Owned by one `PartitionLog`. Records appended in an epoch that is missing in the file are lost: recovery finds batches
stamped with an epoch that contradicts the history, and cuts them or raises LogDamaged.
"""

from __future__ import annotations

from raylog.base.epochs import EpochHistory
from raylog.storage.log.checkpoints import Checkpoints


class KeptEpochs:
    """`leader-epoch-checkpoint` of one folder. Methods raise DiskFull or StorageIoError, with nothing changed."""

    __slots__ = ("_checkpoints", "history")

    def __init__(self, checkpoints: Checkpoints, history: EpochHistory) -> None:
        """Start from `history`, which the file holds."""
        self._checkpoints = checkpoints
        self.history = history

    def enter(self, starts: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Make the (epoch, start offset) pairs of an append durable before its bytes; returns the new ones.

        Raises ValueError for an epoch that would follow a later one.
        """
        known = self.history.entries
        if known and len(starts) == 1 and starts[0][0] == known[-1][0]:
            return ()
        began = []
        changed = EpochHistory(known)
        for epoch, start in starts:
            latest = changed.latest
            if epoch < latest and changed.entries[-1][1] < start:
                raise ValueError(f"Leader epoch {epoch} cannot append behind epoch {latest}: fetch metadata again.")
            if changed.assign(epoch, start):
                began.append((epoch, start))
        if began:
            self._keep(changed)
        return tuple(began)

    def assign(self, epoch: int, start: int) -> None:
        """Record that `epoch` begins at offset `start`."""
        changed = EpochHistory(self.history.entries)
        if changed.assign(epoch, start):
            self._keep(changed)

    def truncate_end(self, offset: int) -> None:
        """Drop epochs that start at or after `offset`."""
        changed = EpochHistory(self.history.entries)
        if changed.truncate_end(offset):
            self._keep(changed)

    def truncate_start(self, offset: int) -> None:
        """Drop epochs that end at or before `offset`; the epoch of `offset` then starts there."""
        changed = EpochHistory(self.history.entries)
        if changed.truncate_start(offset):
            self._keep(changed)

    def clear(self) -> None:
        """Drop every epoch."""
        self._keep(EpochHistory())

    def _keep(self, changed: EpochHistory) -> None:
        self._checkpoints.write_epochs(changed)
        self.history.entries = changed.entries
