"""Deletion of records at a leader (KIP-107): the log start moves first, then the other replicas follow.

Owned by the leader's half of the machine; a new leader epoch gets a new one. Requests wait here until every replica
that counts has moved its log start, so that no later leader has the deleted records (invariant I16).
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.base.errors import OffsetNotAvailable, OffsetOutOfRange, RaylogError, RequestTimedOut
from raylog.base.ids import BrokerId, Offset
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.core.replication.events import (
    AdvanceLogStart,
    AnswerDeleteRecords,
    Effect,
    RefuseRequest,
    RequestId,
    deadline_ms,
)
from raylog.core.replication.isr import FollowerProgress, InSyncSet
from raylog.core.replication.log import ReplicaLog
from raylog.protocol.replica import DeleteRecordsRequest

_ALL_COMMITTED = -1


class Deletions:
    """Delete-records requests of one leader epoch."""

    __slots__ = ("_followers", "_isr", "_log", "waiting")

    def __init__(self, log: ReplicaLog, isr: InSyncSet, followers: Mapping[BrokerId, FollowerProgress]) -> None:
        """Start without requests; ``isr`` and ``followers`` are the leader's own."""
        self._log = log
        self._isr = isr
        self._followers = followers
        self.waiting: dict[RequestId, tuple[Received[DeleteRecordsRequest], Offset]] = {}
        """The requests, and the offset that the low watermark has to reach for each."""

    def on_request(self, event: Received[DeleteRecordsRequest], exposed: Offset | None, out: Outbox[Effect]) -> None:
        """Move the log start offset; then wait for the other replicas.

        ``exposed``: the high watermark that clients may see, which the log start cannot pass; None = not known yet.
        """
        wanted = event.message.before_offset
        error: RaylogError | None = None
        if exposed is None:
            error = OffsetNotAvailable()
        elif wanted != _ALL_COMMITTED and not 0 <= wanted <= exposed:
            error = OffsetOutOfRange(
                f"Records below offset {wanted} cannot be deleted: this partition's log starts at "
                f"{self._log.start} and is committed up to {exposed}. Give an offset in that range, or `-1` for all "
                "that is committed.",
                log_start_offset=self._log.start,
                high_watermark=exposed,
            )
        if exposed is None or error is not None:
            out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=error or OffsetNotAvailable()))
            return
        before = exposed if wanted == _ALL_COMMITTED else Offset(wanted)
        self.waiting[event.request] = (event, before)
        if before > self._log.start:
            out.now.append(AdvanceLogStart(cause=event.cause, to=before, request=event.request))
        else:
            self.complete(out)

    def complete(self, out: Outbox[Effect]) -> None:
        """Answer the requests whose offset the low watermark has reached."""
        if not self.waiting:
            return
        low_watermark = self._low_watermark()[0]
        for request, (event, before) in list(self.waiting.items()):
            if before <= low_watermark:
                del self.waiting[request]
                out.now.append(AnswerDeleteRecords(cause=event.cause, request=request, low_watermark=low_watermark))

    def tick(self, now_ms: int, out: Outbox[Effect]) -> None:
        """Answer what can be answered by now, and refuse requests whose deadline has passed."""
        self.complete(out)
        if not self.waiting:
            return
        low_watermark, behind = self._low_watermark()
        partition = self._isr.state.partition
        for request, (event, before) in list(self.waiting.items()):
            if deadline_ms(event.now_ms, event.message.timeout_ms) <= now_ms:
                del self.waiting[request]
                error = RequestTimedOut(
                    f"The leader has deleted the records below offset {before}, but the replicas on brokers {behind} "
                    f"have not followed yet; the low watermark is {low_watermark}. They follow by themselves: call "
                    "again later to be sure.",
                    topic=partition.topic,  # it exists: the client should not retry on its own
                    partition=partition.partition,
                    low_watermark=low_watermark,
                )
                out.now.append(RefuseRequest(cause=event.cause, request=request, error=error))

    def take_all(self) -> list[RequestId]:
        """Remove all requests and return those that wait for an answer."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting

    def drop(self, request: RequestId) -> None:
        """Drop a request whose connection is closed."""
        self.waiting.pop(request, None)

    def _low_watermark(self) -> tuple[Offset, list[BrokerId]]:
        """Return the lowest log start of the replicas that count, and the brokers behind the leader's own.

        Counted are online replicas and those that may be elected: an ISR member or an eligible replica that is offline
        for a moment could lead with deleted records. Others take the log start over before they may join the ISR
        (:meth:`raylog.core.replication.leader.Leader._may_join`).
        """
        state, start = self._isr.state, self._log.start
        places = {place.broker: place.port for place in state.places}
        counted = {
            broker: progress.log_start
            for broker, progress in self._followers.items()
            if broker in self._isr.maximal or broker in state.elr or places.get(broker, 0)
        }
        behind = sorted(broker for broker, log_start in counted.items() if log_start < start)
        return min([start, *counted.values()]), behind
