"""Leader epochs of one log: which leader wrote from which offset on (KIP-101, KIP-279).

Used by the leader to find where a follower's history parts from its own, and by the follower to find how far to cut.
Pure; the storage engine keeps its own durable copy, this one is the replication machine's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from raylog.core.ids import NO_EPOCH, LeaderEpoch, Offset
from raylog.core.invariants import require


class EpochEnd(NamedTuple):
    """Answer to "where does epoch e end in your log?": the largest epoch not above e, and its exclusive end."""

    epoch: LeaderEpoch
    end_offset: Offset


class EpochHistory:
    """(leader epoch, start offset) pairs, rising strictly in both. The newest may hold no record yet."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[LeaderEpoch, Offset]] = ()) -> None:
        """Take the pairs in rising order, as the checkpoint file holds them."""
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch, or :data:`NO_EPOCH` for a log that never had one."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def earliest(self) -> LeaderEpoch:
        """The oldest epoch that is still known, or :data:`NO_EPOCH`."""
        return self._epochs[0] if self._epochs else NO_EPOCH

    @property
    def entries(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """All pairs, oldest first."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Note that ``epoch`` begins at ``start``; an epoch that is already the newest keeps its start.

        Entries that begin at or after ``start`` held no records and give way.
        """
        if self._epochs and epoch <= self._epochs[-1]:
            if epoch == self._epochs[-1]:
                return
            raise ValueError(f"epoch {epoch} cannot follow epoch {self._epochs[-1]}")
        self.truncate_end(start)
        self._epochs.append(epoch)
        self._starts.append(start)

    def end_for(self, epoch: LeaderEpoch, log_end: Offset) -> EpochEnd:
        """Return the largest known epoch not above ``epoch`` and where it ends.

        For an epoch below all known ones the answer is that epoch itself, ending where the known ones begin: its
        records are gone from this log, nothing of it can be beyond that point. An empty history ends at ``log_end``.
        """
        index = bisect_right(self._epochs, epoch) - 1
        if index < 0:
            return EpochEnd(epoch, self._starts[0] if self._starts else log_end)
        following = self._starts[index + 1] if index + 1 < len(self._starts) else log_end
        return EpochEnd(self._epochs[index], following)

    def start_of(self, epoch: LeaderEpoch) -> Offset | None:
        """Return where exactly this epoch begins, or None when the log does not know it."""
        index = bisect_right(self._epochs, epoch) - 1
        return self._starts[index] if index >= 0 and self._epochs[index] == epoch else None

    def truncate_end(self, to: Offset) -> None:
        """Forget the epochs that begin at or after ``to``."""
        while self._starts and self._starts[-1] >= to:
            self._starts.pop()
            self._epochs.pop()

    def truncate_start(self, log_start: Offset) -> None:
        """Forget the epochs that end at or before ``log_start``; the first one left begins there at the earliest."""
        while len(self._starts) > 1 and self._starts[1] <= log_start:
            del self._starts[0], self._epochs[0]
        if self._starts and self._starts[0] < log_start:
            self._starts[0] = log_start

    def validate(self, log_end: Offset) -> None:
        """Raise InvariantBroken unless the epochs rise and the newest begins within the log.

        Only the two newest are compared: the others were, when they were the newest.
        """
        epochs, starts = self._epochs, self._starts
        if len(epochs) > 1 and not (epochs[-2] < epochs[-1] and starts[-2] < starts[-1]):
            require(False, f"leader epochs do not rise: {self.entries}")
        if starts and starts[-1] > log_end:
            require(False, f"epoch {epochs[-1]} begins at {starts[-1]}, beyond the end {log_end}")

    def clear(self) -> None:
        """Forget everything: the log was thrown away."""
        self._epochs.clear()
        self._starts.clear()
