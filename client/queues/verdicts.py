"""What a consumer says of the records that it holds, on its way to the leader: as few ranges as say the same. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Final

from raylog.core.errors import RaylogError
from raylog.core.queues import events as ev
from raylog.protocol.queues import QueueRange, QueueVerdict

Settled = tuple[int, int, int, int, str]
"""Offset, hand-out count, kind, delay, message."""

UNASKED: Final = frozenset({ev.RENEW, ev.RETURN, ev.GAP})
"""Verdicts of the consumer's own: where one comes too late, nothing that a user did is lost."""


def taken_verdicts(settled: deque[Settled], most: int) -> list[QueueVerdict]:
    """Take the verdicts that wait, at most so many, as ranges.

    A lock is not renewed where something final is reported in the same request. The renewal may be about an earlier
    hand-out, and what the leader says of that must not pass for its answer about the record.
    """
    rows: list[Settled] = []
    while settled and len(rows) < most:
        rows.append(settled.popleft())
    rows.sort(key=_by_offset)
    found: list[QueueVerdict] = []
    first = end = -1
    same: tuple[int, int, int, str] | None = None
    for place, (offset, count, kind, delay_ms, message) in enumerate(rows, 1):
        if kind == ev.RENEW and place < len(rows) and rows[place][0] == offset:
            continue
        if same is not None and offset == end and (count, kind, delay_ms, message) == same:
            end += 1
            continue
        if same is not None:
            found.append(QueueVerdict(first, end, same[1], same[0], same[2], same[3]))
        first, end, same = offset, offset + 1, (count, kind, delay_ms, message)
    if same is not None:
        found.append(QueueVerdict(first, end, same[1], same[0], same[2], same[3]))
    return found


def gap_verdicts(
    rows: Sequence[QueueRange], found: Container[int], failure: RaylogError | None, refused: object
) -> Iterator[Settled]:
    """Say of each offset without a message why there is none: no record, or one that cannot be deserialized."""
    for row in rows:
        for offset in range(row.first, row.end):
            if offset in found:
                continue
            count = row.count
            if failure is None or (isinstance(refused, int) and offset < refused):
                yield offset, count, ev.GAP, -1, ""
            elif offset == refused:
                yield offset, count, ev.REJECT, -1, failure.message
            else:  # behind the refused one, in its batch: to be handed out again, without it
                yield offset, count, ev.RETURN, -1, ""


def is_unasked(first: int, verdicts: Sequence[QueueVerdict]) -> bool:
    """Whether the user has reported nothing of an offset: only its consumer did."""
    return all(row.kind in UNASKED for row in verdicts if row.first <= first < row.end)


def _by_offset(row: Settled) -> tuple[int, bool]:
    return row[0], row[2] != ev.RENEW
