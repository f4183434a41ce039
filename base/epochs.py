"""Epoch history of a log (epoch, start offset): Kafka's leader epoch cache, as a value. Pure.

A follower uses it to find where its log diverges from the leader's (KIP-101, KIP-279). The partition log keeps one and
writes it to `leader-epoch-checkpoint`, the replication machine another; the metadata quorum compares logs by them
(:mod:`raylog.core.quorum.history`). Every end is exclusive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from raylog.base.ids import NO_EPOCH, LeaderEpoch, Offset
from raylog.base.invariants import require


class EpochEnd(NamedTuple):
    """Answer to "where does epoch e end in your log?": the largest epoch not above e, and its exclusive end."""

    epoch: LeaderEpoch
    end_offset: Offset


def _epoch_of(entry: tuple[LeaderEpoch, Offset]) -> LeaderEpoch:
    return entry[0]


def _start_of(entry: tuple[LeaderEpoch, Offset]) -> int:
    return entry[1]


class EpochHistory:
    """(epoch, start offset) pairs; an epoch ends where the next one starts. The newest may hold no record yet."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Take the pairs as a checkpoint holds them; raises ValueError unless both numbers rise, from 0 at least."""
        self.entries: list[tuple[LeaderEpoch, Offset]] = []
        """Both numbers rise strictly: ``entries[i] < entries[i + 1]`` in each."""
        previous = (-1, -1)
        for epoch, start in entries:
            if epoch <= previous[0] or start <= previous[1]:
                raise ValueError(f"Leader epoch {(epoch, start)} does not follow {previous}; both numbers must rise.")
            previous = (epoch, start)
            self.entries.append((LeaderEpoch(epoch), Offset(start)))

    def __eq__(self, other: object) -> bool:
        """Compare by entries."""
        return isinstance(other, EpochHistory) and self.entries == other.entries

    def __repr__(self) -> str:
        """Show the entries."""
        return f"EpochHistory({self.entries})"

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch, or :data:`NO_EPOCH` for a log that never had one."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    @property
    def earliest(self) -> LeaderEpoch:
        """The oldest epoch that is still known, or :data:`NO_EPOCH`."""
        return self.entries[0][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start: int) -> bool:
        """Note that ``epoch`` writes from offset ``start``; True when the history changed.

        Entries that are not strictly below the new one (an epoch at least as high, or a start at or after ``start``)
        are removed, as in Kafka: no record of their leaders survived.
        """
        if epoch < 0 or start < 0:
            raise ValueError(f"Epoch {epoch} and start offset {start} must not be negative.")
        entries = self.entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start:
            return False
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start):
            entries.pop()
        entries.append((LeaderEpoch(epoch), Offset(start)))
        return True

    def end_for(self, epoch: LeaderEpoch, log_end: Offset) -> EpochEnd:
        """Return the largest known epoch not above ``epoch`` and where it ends.

        For an epoch below all known ones the answer is that epoch itself, ending where the known ones begin: its
        records are deleted from this log, and none can lie beyond that point. With an empty history the answer is
        ``epoch``, ending at ``log_end``.
        """
        entries = self.entries
        above = bisect_right(entries, epoch, key=_epoch_of)
        following = entries[above][1] if above < len(entries) else log_end
        return EpochEnd(entries[above - 1][0] if above else epoch, following)

    def epoch_for(self, offset: int) -> LeaderEpoch | None:
        """Return the epoch that wrote the record at ``offset``; None below the first entry."""
        above = bisect_right(self.entries, offset, key=_start_of)
        return self.entries[above - 1][0] if above else None

    def truncate_end(self, to: int) -> bool:
        """Forget the epochs that start at or after ``to``; True when something was forgotten."""
        before = len(self.entries)
        while self.entries and self.entries[-1][1] >= to:
            self.entries.pop()
        return len(self.entries) != before

    def truncate_start(self, log_start: int) -> bool:
        """Forget the epochs that end at or before ``log_start``; the epoch of ``log_start`` then starts there.

        Returns True when something changed.
        """
        above = bisect_right(self.entries, log_start, key=_start_of)
        if above == 0 or (above == 1 and self.entries[0][1] == log_start):
            return False
        self.entries[:above] = [(self.entries[above - 1][0], Offset(log_start))]
        return True

    def validate(self, log_end: int) -> None:
        """Raise InvariantBroken unless the epochs rise and the newest begins within the log.

        Only the two newest are compared: older ones were compared when they were the newest.
        """
        entries = self.entries
        if len(entries) > 1 and not (entries[-2][0] < entries[-1][0] and entries[-2][1] < entries[-1][1]):
            require(False, f"leader epochs do not rise: {entries}")
        if entries and entries[-1][1] > log_end:
            require(False, f"epoch {entries[-1][0]} begins at {entries[-1][1]}, beyond the end {log_end}")
