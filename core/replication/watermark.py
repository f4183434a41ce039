"""The commit rule: how far the high watermark may advance (rule R2). A pure function.

A module of its own, because it is tested alone, against a slow twin.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.base.ids import Offset

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
    """Return the high watermark that the followers' progress allows.

    ``member_ends`` are the durable ends of the *other* members of the maximal ISR (committed and proposed), None for a
    member that has not fetched in this leader epoch: it may hold fewer records than expected, so the watermark stays.
    ``isr_size`` counts the committed ISR: below ``min_insync_replicas`` no record of this epoch is committed, and with
    ``eligible`` leader replicas no record at all, as these have to hold every committed record. Without them only the
    maximal ISR may lead, so that the records it held when this epoch began at ``epoch_start`` are the history (ADR
    0025). The result is never below ``current``.
    """
    lowest = own_durable_end
    if eligible or isr_size < min_insync_replicas:
        if eligible or current >= epoch_start:
            return current
        lowest = min(lowest, epoch_start)
    for end in member_ends:
        if end is None:
            return current
        if end < lowest:
            lowest = end
    return lowest if lowest > current else current
