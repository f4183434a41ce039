"""When a replica may doze: nothing is under way in its process, and nothing is due soon. Pure.

Used by the replica's shell, which collects the facts and offers its broker to stop the process until the time found
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LONGEST_MS: Final = 60_000
"""Longest doze: after it Ray's own threads get a turn, and work without a deadline is delayed by no more."""
SHORTEST_MS: Final = 50
"""A doze that would end sooner is not worth its signals."""

LOOK_MS: Final = 5_000
"""Longest time between two checks of a replica that may not doze yet, or never dozes: settings may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """What a replica's machine knows of its own rest. Times are monotonic milliseconds."""

    since_ms: int
    """When something was last written, or read with records."""
    parked: int
    """Number of requests that wait for records at the end of the log; no other request may be open in a doze."""
    due_ms: int
    """The earliest of its deadlines."""


def doze_until_ms(now_ms: int, quiet: Quiet | None, *, doze_after_ms: int, open_requests: int) -> int | None:
    """Return until when the process may be stopped; None = it may not be stopped now.

    ``quiet`` None: the machine has something under way. ``doze_after_ms``: for how long nothing must have been written
    or read; -1 = it never dozes. ``open_requests``: number of requests that have no answer yet.
    """
    if quiet is None or doze_after_ms < 0 or now_ms - quiet.since_ms < doze_after_ms:
        return None
    if open_requests != quiet.parked:
        return None
    until_ms = min(now_ms + LONGEST_MS, quiet.due_ms)
    return until_ms if until_ms - now_ms >= SHORTEST_MS else None


def next_look_ms(now_ms: int, quiet: Quiet | None, *, doze_after_ms: int, pause_ms: int) -> int:
    """Return in how many milliseconds to check again, after a check that found no doze: each check costs a wake-up.

    Not before ``pause_ms``, a pause for work that ends soon. The other arguments are those of :func:`doze_until_ms`.
    """
    if doze_after_ms < 0:
        return LOOK_MS
    if quiet is None:
        return pause_ms
    return max(pause_ms, min(LOOK_MS, quiet.since_ms + doze_after_ms - now_ms))
