"""Verdicts on their way to the leader: merges equal ones into ranges, and makes those that no user gave. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Final

from raylog.base.errors import CorruptMessage, RaylogError
from raylog.client.queues.message import Hand
from raylog.core.queues import events as ev
from raylog.core.queues.acknowledging import REASON_BYTES_MAX
from raylog.core.queues.states import shortened
from raylog.protocol.queues import QueueFailure, QueueRange, QueueVerdict
from raylog.storage.batch.header import BatchHeader

DAMAGED_RETRY_MS: Final = 1_000
"""Pause before records of a batch with a wrong checksum are handed out again."""
Settled = tuple[int, Hand, int, int, str]
"""A verdict on one record: offset, hand-out, kind, delay in ms (-1 = default), reason."""

UNASKED: Final = frozenset({ev.RENEW, ev.RETURN, ev.GAP})
"""Kinds of verdicts that only the client gives: if one comes too late, no decision of the user is lost."""


def taken_verdicts(settled: deque[Settled], most: int) -> list[QueueVerdict]:
    """Take at most `most` waiting verdicts; return them with equal neighbours merged into ranges.

    A renewal is left out if the same hand-out also has a final verdict among them.
    """
    rows: list[Settled] = []
    while settled and len(rows) < most:
        rows.append(settled.popleft())
    rows.sort(key=_by_offset)
    found: list[QueueVerdict] = []
    first = end = -1
    same: tuple[Hand, int, int, str] | None = None
    for place, (offset, hand, kind, delay_ms, message) in enumerate(rows, 1):
        if kind == ev.RENEW and place < len(rows) and rows[place][:2] == (offset, hand):
            continue
        if same is not None and offset == end and (hand, kind, delay_ms, message) == same:
            end += 1
            continue
        if same is not None:
            found.append(_verdict(first, end, same))
        first, end, same = offset, offset + 1, (hand, kind, delay_ms, message)
    if same is not None:
        found.append(_verdict(first, end, same))
    return found


def gap_verdicts(
    rows: Sequence[QueueRange], found: Container[int], span: range, failure: RaylogError | None, refused: object
) -> Iterator[Settled]:
    """Verdicts for offsets without a message: there is no record, or it cannot be deserialized, or it did not come.

    ``span``: the offsets of the batches that came. ``failure``, ``refused``: the error and the offset of a record that
    cannot be deserialized. Offsets outside the span are to be handed out again.
    """
    for row in rows:
        for offset in range(row.first, row.end):
            if offset in found:
                continue
            hand = row.count, row.lease
            if offset not in span:
                yield offset, hand, ev.RETURN, DAMAGED_RETRY_MS, "its batch did not come with it"
            elif failure is None or (isinstance(refused, int) and offset < refused):
                yield offset, hand, ev.GAP, -1, ""
            elif offset == refused:
                yield offset, hand, ev.REJECT, -1, failure.message
            else:  # after the refused one, in its batch: to be handed out again, without it
                yield offset, hand, ev.RETURN, -1, ""


def unopened_verdicts(rows: Sequence[QueueRange], header: BatchHeader, damage: CorruptMessage) -> list[Settled]:
    """Verdicts for the records of a batch that cannot be opened: rejected, as no consumer can process them.

    But if its checksum is wrong, another replica may have a good copy. Then they are handed out again after a pause,
    and this hand-out does not count, because no user has seen them.
    """
    is_certain = "next_offset" in damage.details
    kind, delay_ms = (ev.REJECT, -1) if is_certain else (ev.RETURN, DAMAGED_RETRY_MS)
    reason = shortened(damage.message, REASON_BYTES_MAX)
    return [
        (offset, (row.count, row.lease), kind, delay_ms, reason)
        for row in rows
        for offset in range(max(row.first, header.base_offset), min(row.end, header.next_offset))
    ]


def is_unasked(failure: QueueFailure, verdicts: Sequence[QueueVerdict]) -> bool:
    """Whether a failure concerns only verdicts that the client itself gave, not the user."""
    first, hand = failure.first, (failure.count, failure.lease)
    return all(
        row.kind in UNASKED for row in verdicts if hand == (row.count, row.lease) and row.first <= first < row.end
    )


def _verdict(first: int, end: int, same: tuple[Hand, int, int, str]) -> QueueVerdict:
    (count, lease), kind, delay_ms, message = same
    return QueueVerdict(first, end, kind, count, delay_ms, message, lease)


def _by_offset(row: Settled) -> tuple[int, Hand, bool]:
    return row[0], row[1], row[2] != ev.RENEW
