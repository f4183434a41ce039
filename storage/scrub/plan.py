"""What a replica reads next to find damage before a reader does, and when: in passes over its log, slowly. Pure.

A pass goes through the segments in order, a slice at a time. All replicas of a broker share one rate, in the order in
which they took turns (docs/adr/0112).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

SLICE_BYTES: Final = 4 << 20
"""How much is read at once, or one batch if that is larger: some milliseconds of a thread."""
AHEAD_MAX_MS: Final = 86_400_000
"""Farthest that turns are given ahead; a later one dates from before a restart of the machine, or from a lower rate,
and is ignored."""
FUTURE_MS: Final = 86_400_000
"""A pass that ended more than this in the future was timed by a wrong clock."""


class Stretch(NamedTuple):
    """A segment, as far as it was synced: offsets from ``base`` up to ``end``, in ``size_bytes``."""

    base: int
    end: int
    size_bytes: int


class Place(NamedTuple):
    """Where the next slice begins: at a byte of the segment with this base offset, where this offset begins."""

    base: int
    position: int
    offset: int


START: Final = Place(-1, 0, -1)


@dataclass(frozen=True, slots=True)
class Passes:
    """How far the passes over one log are. Times are those of the wall clock, in milliseconds since 1970."""

    last_ms: int = 0
    """When the last pass ended; 0 = none has."""
    place: Place | None = None
    """Where the running pass continues; None = none runs."""

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Whether a pass runs, or one should begin."""
        if self.place is not None or not self.last_ms:
            return True
        return now_ms - self.last_ms >= interval_ms or self.last_ms - now_ms > FUTURE_MS

    def next_place(self, log: Sequence[Stretch]) -> Place | None:
        """Return where to continue reading in a log with these segments; None = the pass is at its end.

        A segment that was removed is skipped; one that a cleaner has put in the place of others is read whole.
        """
        at = self.place or START
        for stretch in log:
            if stretch.base == at.base and at.position < stretch.size_bytes:
                return at
            if stretch.base > at.base and stretch.end > at.offset and stretch.size_bytes:
                return Place(stretch.base, 0, stretch.base)
        return None

    def read_to(self, place: Place) -> Passes:
        """Return the state after a slice that ended there."""
        return replace(self, place=place)

    def ended(self, now_ms: int) -> Passes:
        """Return the state after the end of a pass."""
        return Passes(last_ms=now_ms)


def behind(place: Place, log: Sequence[Stretch]) -> Place:
    """Return the place after the segment of this one: nothing more of that segment is read in this pass."""
    end = next((stretch.end for stretch in log if stretch.base == place.base), place.offset)
    return Place(place.base, 1 << 62, end)


def slice_bytes(place: Place, log: Sequence[Stretch]) -> int:
    """Return the size of the slice at this place, in bytes; it may end a little later, with a batch."""
    left = next((stretch.size_bytes - place.position for stretch in log if stretch.base == place.base), 0)
    return max(0, min(SLICE_BYTES, left))


def take_turn(now_ms: int, free_ms: int, size_bytes: int, bytes_per_s: int) -> tuple[int, int]:
    """Return (when a slice may be read, from when on the next turn may be taken), in milliseconds.

    ``free_ms``: the second value of the last call. Over any span of time the rate is exceeded by at most one slice.
    """
    begins_ms = now_ms if free_ms - now_ms > AHEAD_MAX_MS else max(now_ms, free_ms)
    return begins_ms, begins_ms - (-size_bytes * 1000 // bytes_per_s)
