"""Resetting the committed offsets of a group without members: all of a request's partitions, or none.

A reset is planned from what was committed, and takes effect later. So it names what it was planned from: the group's
generation, and each partition's committed offset. It is refused if the group was used in between; otherwise a member
that came, read on and left would lose its commits. Called by ``coordinator.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from raylog.base.errors import (
    InvalidRequest,
    RaylogError,
    RecordTooLarge,
    ResetOutdated,
    UnstableOffsetCommit,
)
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.offsets import OffsetStore, row_error
from raylog.core.groups.records import OffsetCommitted, OffsetKey
from raylog.core.groups.use import GroupUse
from raylog.core.received import Received
from raylog.protocol.groups import OffsetResetRequest

ANY: Final = -2
"""In place of the committed offset that a reset was planned from: any will do."""
ROW_MORE: Final = 16
"""Most bytes of a row in a batch besides its key and value."""
NAMED_MAX: Final = 5
"""Most partitions that an error names."""


def reset(
    store: OffsetStore,
    use: GroupUse,
    event: Received[OffsetResetRequest],
    decision: GroupDecision,
    *,
    pending: Collection[OffsetKey],
) -> None:
    """Handle OffsetReset. Replies [].

    A repetition succeeds: a partition whose committed offset is already the requested one is not outdated. ``pending``:
    offsets that a transaction is about to commit; a reset of one of them is refused as unstable.
    """
    rows = [
        OffsetCommitted(
            use.group, row.topic_id, row.topic, row.partition, row.committed_offset, -1, "", decision.wall_ms
        )
        for row in event.message.offsets
    ]
    error = (
        use.active_error()
        or _unstable(use, rows, pending)
        or _outdated(store, use, event.message, rows)
        or _illegal(use, rows, decision)
    )
    if error is not None:
        decision.refuse(event.request, error)
        return
    for row in rows:
        decision.write(row)
    decision.reply(event.request, [])


def _unstable(
    use: GroupUse, rows: list[OffsetCommitted], pending: Collection[OffsetKey]
) -> UnstableOffsetCommit | None:
    unstable = [f"{row.topic}-{row.partition}" for row in rows if row.key in pending]
    if not unstable:
        return None
    return UnstableOffsetCommit(
        f"A transaction is about to commit offsets of group {use.group!r} for {', '.join(unstable[:NAMED_MAX])}; wait "
        "for its end, or abort it."
    )


def _outdated(
    store: OffsetStore, use: GroupUse, message: OffsetResetRequest, rows: list[OffsetCommitted]
) -> ResetOutdated | None:
    if message.generation_id not in (-1, use.generation):
        return ResetOutdated(
            f"Group {use.group!r} was used since this reset was planned (generation {message.generation_id}, now "
            f"{use.generation}); plan it again.",
            group=use.group,
            generation=use.generation,
        )
    for row, planned in zip(rows, message.offsets, strict=True):
        held = store.get(row.key)
        offset = -1 if held is None else held.offset
        if planned.planned_from not in (ANY, offset) and offset != row.offset:
            return ResetOutdated(
                f"Group {use.group!r} has committed offset {offset} of {planned.topic}-{planned.partition} since this "
                f"reset was planned, from {planned.planned_from}; plan it again.",
                group=use.group,
                topic=planned.topic,
                partition=planned.partition,
                offset=offset,
            )
    return None


def _illegal(use: GroupUse, rows: list[OffsetCommitted], decision: GroupDecision) -> RaylogError | None:
    """Return the error for illegal offsets, or for too many for one batch of the log, which is stored as a whole."""
    if not rows or len({row.key for row in rows}) < len(rows):
        return InvalidRequest("A reset names partitions, each of them once.")
    wrong = next((row for row in rows if row_error(row, decision.settings)), None)
    if wrong is not None:
        return InvalidRequest(
            f"The offset {wrong.offset} of {wrong.topic}-{wrong.partition} cannot be committed in group "
            f"{use.group!r}: it has to be 0 or more, and its names have to fit into one record."
        )
    if sum(row_bytes(*row.to_wire()) + ROW_MORE for row in rows) > decision.settings.record_bytes_max:
        return RecordTooLarge(
            f"The offsets of {len(rows)} partitions do not fit into one batch of the log, which is stored whole or "
            "not at all; reset fewer topics at a time.",
        )
    return None
