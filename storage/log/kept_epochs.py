"""The leader epochs of a log and their file: a change is written first, durably, and known only then.

Owned by one `PartitionLog`. What is appended in an epoch that no file has is lost: recovery finds batches that are
stamped with another epoch than history says, and cuts them or calls the log damaged.
"""

from __future__ import annotations

from raylog.core.epochs import EpochHistory
from raylog.storage.log.checkpoints import Checkpoints


class KeptEpochs:
    """`leader-epoch-checkpoint` of one folder. Methods raise DiskFull or StorageIoError, with nothing changed."""

    __slots__ = ("_checkpoints", "history")

    def __init__(self, checkpoints: Checkpoints, history: EpochHistory) -> None:
        """Go on from `history`, which the file holds."""
        self._checkpoints = checkpoints
        self.history = history

    def enter(self, starts: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Make the (epoch, start offset) pairs of an append durable before its bytes; those that are new.

        Raises ValueError for an epoch that lies behind a later one.
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
        """Note that `epoch` begins at offset `start`."""
        changed = EpochHistory(self.history.entries)
        if changed.assign(epoch, start):
            self._keep(changed)

    def truncate_end(self, offset: int) -> None:
        """Forget epochs that start at or behind `offset`."""
        changed = EpochHistory(self.history.entries)
        if changed.truncate_end(offset):
            self._keep(changed)

    def truncate_start(self, offset: int) -> None:
        """Forget epochs that end at or before `offset`; the one that holds it then starts there."""
        changed = EpochHistory(self.history.entries)
        if changed.truncate_start(offset):
            self._keep(changed)

    def clear(self) -> None:
        """Forget every epoch."""
        self._keep(EpochHistory())

    def _keep(self, changed: EpochHistory) -> None:
        self._checkpoints.write_epochs(changed)
        self.history.entries = changed.entries
