"""Keeps retention from what a leader role still has to copy elsewhere: the records of dead letters and late retries.

A record is copied from the log when its target topic accepts it, which may be long after it was rejected. Until then
retention keeps its segment and all later ones; a delete-records request does not. Bounded in time and bytes, so that a
copy that never succeeds fills no disk. Owned by the replica's runner. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HELD_MS_MAX: Final = 86_400_000
"""Longest time for which one offset is held."""
HELD_BYTES_MAX: Final = 1 << 30
"""A log of this size or more is not held."""


@dataclass(slots=True)
class Hold:
    """The offset from which on records are held. A role that makes progress needs a higher one: the time starts again.

    Followers hold what their leader holds. A follower that leads next inherits that offset: its roles may not have
    loaded their state yet, and some load it only when they are used. The inheritance ends when they need that offset or
    a lower one: from then on they know what they need.
    """

    offset: int = -1
    """The lowest offset that is needed; -1 = none."""
    given_up: bool = False
    """Whether an offset is needed but no longer held: it was held for too long, or the log is too large."""
    _since_ms: int = 0
    _known: int = -1
    """The inherited offset, once the roles of this leadership know it; -1 = they do not yet."""

    def followed(self) -> None:
        """Note that another replica leads: the offset that it states is inherited."""
        self._known = -1

    def limit(
        self,
        needed: int | None,
        *,
        log_start: int,
        watermark: int,
        size_bytes: int,
        now_ms: int,
        inherited: int = -1,
    ) -> int:
        """Return the offset below which retention may remove segments. ``now_ms`` is monotonic.

        ``needed``: the lowest offset that a role still has to copy; None = it needs none. ``inherited``: what the last
        leader held when it answered; -1 = nothing.
        """
        held = self._needed(needed, inherited, log_start)
        if held is None:
            self.offset, self.given_up = -1, False
            return watermark
        if held != self.offset:
            self.offset, self._since_ms = held, now_ms
        self.given_up = now_ms - self._since_ms >= HELD_MS_MAX or size_bytes >= HELD_BYTES_MAX
        return watermark if self.given_up else min(watermark, held)

    def stated(self, needed: int | None, *, log_start: int, inherited: int = -1) -> int:
        """Return what followers are to hold: the same, unless it was given up; -1 = nothing."""
        held = self._needed(needed, inherited, log_start)
        return -1 if held is None or (self.given_up and held == self.offset) else held

    def _needed(self, needed: int | None, inherited: int, log_start: int) -> int | None:
        """Return the lowest offset that is needed and still in the log; None = none is."""
        if needed is not None and needed <= inherited:
            self._known = inherited
        if inherited != self._known and inherited >= log_start:
            needed = inherited if needed is None else min(needed, inherited)
        return None if needed is None or needed < log_start else needed
