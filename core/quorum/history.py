"""Epoch history of a metadata log. Used by the voter and by the proposer of the quorum.

Log matching: an epoch has one proposer, and a proposer writes an offset once. So two logs that hold a record of the
same epoch at the same offset are equal up to and including it (I8).

A log whose beginning was replaced by a snapshot still knows the epoch of the last record in it: its first entry is that
epoch, at the offset before the start. So it can be compared like a complete log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raylog.base.epochs import EpochHistory
from raylog.base.ids import LeaderEpoch, Offset

NO_EPOCH = 0
"""Epoch before the first record: real ones begin at 1."""


class Span(NamedTuple):
    """One batch: offsets from ``start`` to ``end`` (exclusive), written in one epoch."""

    start: int
    end: int
    epoch: int


class LogHistory:
    """Summary of a metadata log for comparing it with another: epochs, start and end."""

    __slots__ = ("_epochs", "end", "start")

    def __init__(self, epochs: Iterable[tuple[int, int]] = (), end: int = 0, start: int = 0) -> None:
        """``epochs`` are pairs (epoch, first offset), rising in both; ``start`` is the first offset still held."""
        self._epochs = EpochHistory(epochs)
        self._epochs.truncate_end(end)
        self.end = end
        self.start = start

    @property
    def epochs(self) -> list[tuple[LeaderEpoch, Offset]]:
        """Pairs (controller epoch, first offset), rising in both."""
        return self._epochs.entries

    @property
    def rank(self) -> tuple[int, int]:
        """(Epoch of the last record, end): a candidate adopts the log with the greatest rank, as in Raft."""
        return (self.epoch_before(self.end), self.end)

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the record before ``offset``; :data:`NO_EPOCH` before the first one."""
        return self._epochs.epoch_for(offset - 1) or NO_EPOCH

    def matches(self, offset: int, epoch: int) -> bool:
        """Return whether this log holds all records below ``offset``, the last of them being of ``epoch``."""
        return self.start <= offset <= self.end and self.epoch_before(offset) == epoch

    def common_end(self, other: LogHistory) -> int:
        """Return the offset up to which the two logs are known to be equal; 0 when that is unknown."""
        ends = {epoch: end for epoch, _, end in other._ranges()}
        for epoch, first, end in reversed(self._ranges()):
            theirs = ends.get(epoch)
            if theirs is not None and min(end, theirs) > first:
                return min(end, theirs)
        return 0

    def append(self, spans: Sequence[Span]) -> None:
        """Append batches that follow the end."""
        for span in spans:
            self._epochs.assign(span.epoch, span.start)
            self.end = span.end

    def truncate(self, to: int) -> None:
        """Drop everything from ``to`` on."""
        self.end = min(self.end, to)
        self._epochs.truncate_end(self.end)

    def drop_before(self, to: int) -> None:
        """Let a snapshot stand for everything below ``to``, which this log holds."""
        if to > self.start:
            self._epochs.truncate_start(to - 1)
            self.start = to

    def restart(self, at: int, epoch: int) -> None:
        """Drop everything, and continue where a snapshot ends: at ``at``, after a last record of ``epoch``."""
        self._epochs = EpochHistory([(epoch, at - 1)])
        self.start = self.end = at

    def copy(self) -> LogHistory:
        """Return an independent copy."""
        return LogHistory(self.epochs, self.end, self.start)

    def _ranges(self) -> list[tuple[int, int, int]]:
        ends = [*(first for _, first in self.epochs[1:]), self.end]
        return [(epoch, first, end) for (epoch, first), end in zip(self.epochs, ends, strict=False)]

    def __repr__(self) -> str:
        """Show it in messages about defects."""
        return f"LogHistory({self.epochs}, end={self.end}, start={self.start})"


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a voter's recovery, and the changes that the log needs before it is used."""

    history: LogHistory
    lost: str = ""
    """Why this copy cannot be used; empty = it can."""
    drop_before: int | None = None
    """Records below this are in the snapshot; their deletion is due."""
    restart_at: int | None = None
    """The log does not continue the snapshot: empty it and continue here."""


def put_together(log: LogHistory, snapshot: tuple[int, int] | None) -> Found:
    """Return the result for a voter's log and snapshot on disk; the latter is given as (end, epoch of its last record).

    The snapshot is written durably first, then the log follows: a crash in between leaves a log that begins too early,
    or one unrelated to the snapshot. Any other mismatch is damage.
    The entries of a log on disk do not include the epoch of the record before its start: the snapshot adds it.
    """
    if snapshot is None:
        lost = f"its log begins at {log.start}, and the snapshot of what was before is missing" if log.start else ""
        return Found(log, lost)
    end, epoch = snapshot
    if log.start > end:
        return Found(log, f"its log begins at {log.start}, and its snapshot ends at {end}")
    if log.end < end or (log.start < end and log.epoch_before(end) != epoch):
        history = LogHistory()
        history.restart(end, epoch)
        return Found(history, restart_at=end)
    entries = [(epoch, end - 1), *((item, first) for item, first in log.epochs if first >= end and item > epoch)]
    return Found(LogHistory(entries, log.end, end), drop_before=end if log.start < end else None)
