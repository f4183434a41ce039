"""Visibility of a leader's log to clients: records below the high watermark, and offsets once that is known.

Owned by the leader's half of the machine; a new leader epoch gets a new one. Fetches wait here for the high watermark.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.base.errors import OffsetNotAvailable, OffsetOutOfRange
from raylog.base.ids import EARLIEST, LATEST, LeaderEpoch, Offset
from raylog.base.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.core.replication.consumer_events import (
    AnswerEpochEnd,
    AnswerOffset,
    ConsumerFetch,
    FetchStillWaits,
    FindTimestamp,
    TryFetch,
)
from raylog.core.replication.events import Effect, RefuseRequest, RequestId, deadline_ms
from raylog.core.replication.log import ReplicaLog
from raylog.protocol.replica import (
    READ_COMMITTED,
    FindTimesRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

_NOTHING = Offset(-1)


@dataclass(slots=True)
class _Waiting:
    fetch: ConsumerFetch
    tried: Offset
    """Too few bytes lie below this offset."""
    is_blocked: bool

    @property
    def deadline_ms(self) -> int:
        return deadline_ms(self.fetch.now_ms, self.fetch.message.max_wait_ms)


class Visibility:
    """Consumers' fetches of one leader epoch. Invariant: none waits for records that are visible and untried."""

    __slots__ = ("_log", "exposed", "is_touched", "waiting")

    def __init__(self, log: ReplicaLog) -> None:
        """Start without parked fetches."""
        self._log = log
        self.exposed: Offset | None = None
        """The high watermark for clients; None until it has reached the start of this epoch (rule R3)."""
        self.waiting: dict[RequestId, _Waiting] = {}
        self.is_touched = False
        """Whether records were read since this was last looked at; waiting at the end is no reading."""

    def on_fetch(self, event: ConsumerFetch, out: Outbox[Effect]) -> None:
        """Try a fetch if there are records to read or its timeout has passed, else park it."""
        self._take(event, event.message.max_wait_ms <= 0, out)

    def on_still_waits(self, event: FetchStillWaits, out: Outbox[Effect]) -> None:
        """Park a fetch that got too few bytes."""
        if not event.is_blocked and self._log.high_watermark > event.tried:
            self._take(event.fetch, False, out)
        else:
            self.waiting[event.fetch.request] = _Waiting(event.fetch, event.tried, event.is_blocked)

    def wake(self, out: Outbox[Effect]) -> None:
        """The high watermark has moved: try the fetches that may now read more."""
        for waiting in [waiter for waiter in self.waiting.values() if self._may_read_more(waiter)]:
            del self.waiting[waiting.fetch.request]
            self._take(waiting.fetch, False, out)

    def tick(self, now_ms: int, out: Outbox[Effect]) -> None:
        """Answer the fetches that timed out, and retry those whose consumers had earlier answers to take."""
        for waiting in list(self.waiting.values()):
            is_last = waiting.deadline_ms <= now_ms
            if is_last or waiting.is_blocked:
                del self.waiting[waiting.fetch.request]
                self._take(waiting.fetch, is_last, out)

    def retry_blocked(self, now_ms: int, out: Outbox[Effect]) -> None:
        """Try the blocked fetches again, in the order in which they were blocked."""
        for waiting in [waiter for waiter in self.waiting.values() if waiter.is_blocked]:
            del self.waiting[waiting.fetch.request]
            self._take(waiting.fetch, waiting.deadline_ms <= now_ms, out)

    def next_due_ms(self, now_ms: int, otherwise: int) -> int:
        """Return when :meth:`tick` is due, at the latest ``otherwise``."""
        due_ms = otherwise
        for waiting in self.waiting.values():
            due_ms = min(due_ms, now_ms if waiting.is_blocked else waiting.deadline_ms)
        return due_ms

    def list_offsets(self, event: Received[ListOffsetsRequest], leader_epoch: LeaderEpoch, out: Outbox[Effect]) -> None:
        """Answer a list-offsets request; all but the start needs a known high watermark."""
        request, exposed = event.request, self.exposed
        message = event.message
        if message.timestamp == EARLIEST:
            out.now.append(AnswerOffset(request=request, offset=self._log.start, leader_epoch=leader_epoch))
        elif exposed is None:
            out.now.append(RefuseRequest(cause=event.cause, request=request, error=OffsetNotAvailable()))
        elif message.timestamp == LATEST:
            committed_only = message.isolation_level == READ_COMMITTED
            end = AnswerOffset(
                request=request, offset=exposed, leader_epoch=leader_epoch, committed_only=committed_only
            )
            out.now.append(end)
        else:
            self._find(request, message, exposed, leader_epoch, out)

    def find_times(self, event: Received[FindTimesRequest], leader_epoch: LeaderEpoch, out: Outbox[Effect]) -> None:
        """Answer a search for a span of time, which needs a known high watermark."""
        if self.exposed is None:
            out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=OffsetNotAvailable()))
        else:
            self._find(event.request, event.message, self.exposed, leader_epoch, out)

    def _find(
        self,
        request: RequestId,
        message: ListOffsetsRequest | FindTimesRequest,
        upper: Offset,
        leader_epoch: LeaderEpoch,
        out: Outbox[Effect],
    ) -> None:
        self.is_touched = True
        out.now.append(FindTimestamp(request=request, message=message, upper=upper, leader_epoch=leader_epoch))

    def epoch_end(self, event: Received[OffsetForLeaderEpochRequest], out: Outbox[Effect]) -> None:
        """Answer where an epoch ends in this log."""
        found = self._log.epochs.end_for(LeaderEpoch(event.message.leader_epoch), self._log.end)
        out.now.append(
            AnswerEpochEnd(
                request=event.request,
                epoch=found.epoch,
                end_offset=found.end_offset,
                log_start_offset=self._log.start,
            )
        )

    def take_all(self) -> list[RequestId]:
        """Remove and return the parked fetches."""
        waiting, self.waiting = self.waiting, {}
        return list(waiting)

    def drop(self, request: RequestId) -> None:
        """Drop a request whose connection is closed."""
        self.waiting.pop(request, None)

    def validate(self) -> None:
        """Raise InvariantBroken if a fetch waits although it could be served."""
        for request, waiting in self.waiting.items():
            if not waiting.is_blocked and self._may_read_more(waiting):
                require(False, f"consumer's fetch {request} waits for records that are visible")

    def _may_read_more(self, waiting: _Waiting) -> bool:
        return max(waiting.tried, waiting.fetch.message.fetch_offset) < self._log.high_watermark

    def _take(self, fetch: ConsumerFetch, is_last: bool, out: Outbox[Effect]) -> None:
        log, offset = self._log, fetch.message.fetch_offset
        if not log.start <= offset <= log.end:
            error = OffsetOutOfRange(
                f"Offset {offset} is outside the log, which runs from {log.start} to {log.end}. Reset the position.",
                start=log.start,
                end=log.end,
            )
            out.now.append(RefuseRequest(cause=fetch.cause, request=fetch.request, error=error))
        elif is_last or offset < log.high_watermark:
            self.is_touched |= offset < log.high_watermark
            exposed = -1 if self.exposed is None else self.exposed
            out.now.append(
                TryFetch(
                    fetch=fetch,
                    upper=log.high_watermark,
                    exposed=exposed,
                    log_start_offset=log.start,
                    is_last=is_last,
                )
            )
        else:
            self.waiting[fetch.request] = _Waiting(fetch, _NOTHING, False)
