"""The commit rule: how far the high watermark may go (rule R2). One pure function, so that a slow twin can test it."""

from __future__ import annotations

from collections.abc import Iterable

from raylog.core.ids import Offset


def committed_end(
    *,
    current: Offset,
    own_durable_end: Offset,
    member_ends: Iterable[Offset | None],
    isr_size: int,
    min_insync_replicas: int,
) -> Offset:
    """Return the high watermark that the followers' progress has earned.

    ``member_ends`` are the durable ends of the *other* members of the maximal ISR (committed and proposed), None for
    one that was not heard in this leader epoch: it could hold less than we think, so nothing moves. ``isr_size``
    counts the committed ISR: below ``min_insync_replicas`` nothing becomes committed. The result is never below
    ``current``.
    """
    if isr_size < min_insync_replicas:
        return current
    lowest = own_durable_end
    for end in member_ends:
        if end is None:
            return current
        lowest = min(lowest, end)
    return max(current, lowest)
