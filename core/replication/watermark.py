"""The commit rule: how far the high watermark may go (rule R2). One pure function, so that a slow twin can test it."""

from __future__ import annotations

from collections.abc import Iterable

from raylog.core.ids import Offset

_ZERO = Offset(0)


def committed_end(
    *,
    current: Offset,
    own_durable_end: Offset,
    member_ends: Iterable[Offset | None],
    isr_size: int,
    min_insync_replicas: int,
    eligible: bool = False,
    epoch_start: Offset = _ZERO,
) -> Offset:
    """Return the high watermark that the followers' progress has earned.

    ``member_ends`` are the durable ends of the *other* members of the maximal ISR (committed and proposed), None for
    one that was not heard in this leader epoch: it could hold less than we think, so nothing moves. ``isr_size``
    counts the committed ISR: below ``min_insync_replicas`` nothing of this epoch becomes committed, and beside
    ``eligible`` leader replicas nothing at all, as these are trusted to have all that ever was. Where there are none,
    only the maximal ISR may ever lead, so that what it held when this epoch began at ``epoch_start`` is the history
    (ADR 0025). The result is never below ``current``.
    """
    lowest = own_durable_end
    if eligible or isr_size < min_insync_replicas:
        if eligible or current >= epoch_start:
            return current
        lowest = min(lowest, epoch_start)
    for end in member_ends:
        if end is None:
            return current
        lowest = min(lowest, end)
    return max(current, lowest)
