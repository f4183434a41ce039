"""Whether the disk under a replica takes appends, and finishes syncs. Used by the leader and the follower.

A leader whose disk goes on failing lets another in-sync replica lead; a follower in the same state leaves the ISR, so
that acks=all does not wait for it. A disk that is only full may have room again at any moment, and the partition may be
idle until then: so the suspicion ends after a while without failures, and returns with the next failure.

A disk that hangs reports no failure: appends go to the page cache, and the sync behind them does not end. Ticks report
since when the oldest sync is under way. A follower with such a disk acknowledges no records, and leaves the ISR as it
lags.

A disk that gives back other bytes than were synced counts as failing until the damaged records have left the log.
"""

from __future__ import annotations

from raylog.base.ids import Offset

PATIENCE_MS = 2_000
"""Failures for this long, without a success between them, count as persistent."""
DOUBT_MS = 10_000
"""A failure older than this is ignored."""
PAUSE_MS = 2_000
"""Ticks farther apart than this mean that the process itself stood still: a sync may have ended unnoticed meanwhile."""


class DiskHealth:
    """Shared by the leader and follower halves of one machine."""

    __slots__ = (
        "_damaged_to",
        "_failed_ms",
        "_looked_ms",
        "_watched_ms",
        "damaged_at",
        "failing_since_ms",
        "hanging_ms",
    )

    def __init__(self) -> None:
        """Start with a healthy disk."""
        self.failing_since_ms: int | None = None
        """Since when the disk has refused everything; None while it takes appends."""
        self._failed_ms = 0
        self.hanging_ms = 0
        """For how long the oldest sync has been under way, once that is too long; 0 while the disk keeps up."""
        self._looked_ms = 0
        """Time of the last tick."""
        self._watched_ms = 0
        """Time of the first tick since the process last stood still."""
        self.damaged_at: Offset | None = None
        """First offset of the damage in the log that was found first; None while all that was read was whole."""
        self._damaged_to = Offset(-1)
        """Exclusive end of that damage."""

    def damage_found(self, offset: Offset, next_offset: Offset) -> None:
        """Note that the records from ``offset`` up to ``next_offset`` cannot be read."""
        if self.damaged_at is None:
            self.damaged_at, self._damaged_to = offset, max(next_offset, Offset(offset + 1))

    def log_is(self, start: Offset, end: Offset) -> None:
        """Forget damage that the log does not hold any more."""
        if self.damaged_at is not None and (end <= self.damaged_at or start >= self._damaged_to):
            self.damaged_at = None

    def note_tick(self, now_ms: int, sync_since_ms: int | None, limit_ms: int) -> None:
        """Note, at a tick, since when the oldest sync is under way; None = none is.

        ``limit_ms``: a sync under way for this long counts as hanging.
        """
        if now_ms - self._looked_ms > PAUSE_MS:
            self._watched_ms = now_ms
        self._looked_ms = now_ms
        under_way_ms = 0 if sync_since_ms is None else now_ms - max(sync_since_ms, self._watched_ms)
        self.hanging_ms = under_way_ms if under_way_ms >= limit_ms else 0

    def append_failed(self, now_ms: int) -> None:
        """Note that the disk refused an append."""
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        self._failed_ms = now_ms

    def append_succeeded(self) -> None:
        """Note that the disk took an append: earlier failures are forgotten."""
        self.failing_since_ms = None

    def is_failing(self, now_ms: int) -> bool:
        """Return whether the disk has refused every append for a while, including a recent one, or damaged the log."""
        since = self.failing_since_ms
        if self.damaged_at is not None:
            return True
        return since is not None and self._failed_ms - since >= PATIENCE_MS and now_ms - self._failed_ms < DOUBT_MS
