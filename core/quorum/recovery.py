"""Recovery of a voter from the snapshot and the log on its disk. Pure; called when a voter is opened.

The snapshot is written durably first, then the log follows: a crash in between leaves a log that begins too early, or
one unrelated to the snapshot. Any other mismatch is damage.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.core.quorum.history import LogHistory


@dataclass(frozen=True, slots=True)
class Found:
    """Result of recovery, and the changes that the log needs before it is used."""

    history: LogHistory
    lost: str = ""
    """Why this copy cannot be used; empty = it can."""
    drop_before: int | None = None
    """Records below this are in the snapshot; their deletion is due."""
    restart_at: int | None = None
    """The log does not continue the snapshot: empty it and continue here."""


def put_together(log: LogHistory, snapshot: tuple[int, int] | None) -> Found:
    """Return the result for a log and a snapshot, which is given as (end, epoch of its last record).

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
