"""Requests to a queue's machine, as its leader hands them over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raylog.core.queues import events as ev
from raylog.core.received import Received
from raylog.protocol.queues import (
    QueueAcknowledgeRequest,
    QueueFetchRequest,
    QueueOpenRequest,
    QueueResetRequest,
    QueueVerdict,
)

QUEUE = ("id", 0, 1, "workers")


def opened(
    member: str,
    settings: Mapping[str, str],
    now_ms: int,
    request: int = 1,
    *,
    log_start: int = 0,
    readable_end: int = 0,
) -> ev.Opened:
    """A member opens the queue."""
    message = QueueOpenRequest(*QUEUE, member, settings)
    return ev.Opened(
        message=message, cause="t", request=request, now_ms=now_ms, log_start=log_start, readable_end=readable_end
    )


def take(
    member: str,
    span: tuple[int, int],
    max_records: int,
    now_ms: int,
    request: int = 1,
    gaps: Sequence[tuple[int, int]] = (),
) -> ev.Take:
    """A member's fetch gets its turn, with the records of a span."""
    message = QueueFetchRequest(*QUEUE, member, max_records, 1 << 20, 0)
    return ev.Take(message=message, cause="t", request=request, now_ms=now_ms, first=span[0], end=span[1], gaps=gaps)


def acknowledged(
    member: str, verdicts: Sequence[QueueVerdict], now_ms: int, request: int = 1
) -> Received[QueueAcknowledgeRequest]:
    """A member reports verdicts."""
    return Received(
        message=QueueAcknowledgeRequest(*QUEUE, member, verdicts), cause="t", request=request, now_ms=now_ms
    )


def reset(offset: int, now_ms: int, *, readable_end: int) -> ev.Reset:
    """The queue is to continue at an offset, in a log that begins at 0."""
    message = QueueResetRequest(*QUEUE, offset)
    return ev.Reset(message=message, cause="t", request=1, now_ms=now_ms, log_start=0, readable_end=readable_end)
