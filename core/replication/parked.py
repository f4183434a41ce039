"""Requests that wait at the leader: produce requests for the high watermark or the disk, and followers' fetches.

The purgatory of one partition. Each request is answered exactly once: by the event it waits for, by its deadline, or by
the end of the leadership; a dropped one is not answered at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from raylog.base.errors import NotEnoughReplicasAfterAppend, RequestTimedOut
from raylog.base.ids import BrokerId, Offset
from raylog.base.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.core.replication.events import (
    AnswerMarker,
    AnswerProduce,
    Effect,
    RefuseRequest,
    RequestId,
    deadline_ms,
)
from raylog.protocol.replica import ReplicaFetchRequest

_ZERO = Offset(0)


@dataclass(slots=True)
class ParkedProduce:
    """A produce request, or one for a marker, in flight: append requested (``end`` None), then appended and waiting."""

    cause: str
    acks: int
    deadline_ms: int
    first: Offset = _ZERO
    end: Offset | None = None
    is_marker: bool = False


class ParkedProduces:
    """Produce requests by the offset they wait for: acks=all for the high watermark, acks=1 for the local disk."""

    __slots__ = ("_appending", "_by_disk", "_by_watermark", "_waiting")

    def __init__(self) -> None:
        """Start empty."""
        self._appending: dict[RequestId, ParkedProduce] = {}
        self._waiting: dict[RequestId, ParkedProduce] = {}
        self._by_watermark: list[tuple[Offset, RequestId]] = []
        self._by_disk: list[tuple[Offset, RequestId]] = []

    @property
    def is_busy(self) -> bool:
        """Whether a request is appended or waits."""
        return bool(self._appending or self._waiting)

    def add(self, request: RequestId, produce: ParkedProduce) -> None:
        """Keep a request whose append is in progress."""
        if request in self._appending or request in self._waiting:
            require(False, f"request {request} came twice")
        self._appending[request] = produce

    def take(self, request: RequestId) -> ParkedProduce | None:
        """Remove and return a request whose append is in progress; None when there is none."""
        return self._appending.pop(request, None)

    def wait(self, request: RequestId, produce: ParkedProduce, end: Offset) -> None:
        """Park an appended request; an acks=0 request has no answer and is forgotten."""
        if produce.acks == 0:
            return
        produce.end = end
        self._waiting[request] = produce
        heappush(self._by_watermark if produce.acks == -1 else self._by_disk, (end, request))

    def complete(self, durable_end: Offset, watermark: Offset, out: Outbox[Effect]) -> None:
        """Answer every request whose offset was reached."""
        for heap, reached in ((self._by_watermark, watermark), (self._by_disk, durable_end)):
            while heap and heap[0][0] <= reached:
                _, request = heappop(heap)
                produce = self._waiting.pop(request, None)
                if produce is None:
                    continue
                if produce.is_marker:
                    out.now.append(AnswerMarker(request=request))
                else:
                    out.now.append(AnswerProduce(cause=produce.cause, request=request, first_offset=produce.first))

    def first_deadline_ms(self, otherwise: int) -> int:
        """Return the earliest deadline of the parked requests, or ``otherwise`` if there is none."""
        return min([produce.deadline_ms for produce in self._waiting.values()], default=otherwise)

    def expire(self, now_ms: int, enough_replicas: bool, out: Outbox[Effect]) -> None:
        """Refuse requests whose deadline has passed: with RequestTimedOut, or with NotEnoughReplicasAfterAppend."""
        overdue = [request for request, produce in self._waiting.items() if produce.deadline_ms <= now_ms]
        for request in overdue:
            produce = self._waiting.pop(request)
            error = RequestTimedOut() if enough_replicas or produce.acks == 1 else NotEnoughReplicasAfterAppend()
            out.now.append(RefuseRequest(cause=produce.cause, request=request, error=error))

    def take_waiting(self) -> list[RequestId]:
        """Remove all requests and return those that wait for an answer."""
        waiting = [*(request for request, produce in self._appending.items() if produce.acks), *self._waiting]
        self._appending.clear()
        self._waiting.clear()
        self._by_watermark.clear()
        self._by_disk.clear()
        return waiting

    def drop(self, request: RequestId) -> None:
        """Drop a parked request; its heap entry is skipped later."""
        self._waiting.pop(request, None)

    def validate(self, durable_end: Offset, watermark: Offset) -> None:
        """Raise InvariantBroken if a request waits for an offset that was reached."""
        for request, produce in self._waiting.items():
            reached = watermark if produce.acks == -1 else durable_end
            if produce.end is None or produce.end <= reached:
                require(False, f"request {request} waits for what has come")


class ParkedFetches:
    """Long polls of followers: at most one per follower and incarnation."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        """Start empty."""
        self.waiting: dict[tuple[BrokerId, int], Received[ReplicaFetchRequest]] = {}
        """By follower and incarnation."""

    def park(self, follower: BrokerId, fetch: Received[ReplicaFetchRequest]) -> Received[ReplicaFetchRequest] | None:
        """Park a fetch and return the older one of the same follower that it replaces, to be answered empty."""
        key = (follower, fetch.message.incarnation)
        replaced = self.waiting.pop(key, None)
        self.waiting[key] = fetch
        return replaced

    def take_all(self) -> list[Received[ReplicaFetchRequest]]:
        """Remove all fetches and return them."""
        waiting, self.waiting = self.waiting, {}
        return list(waiting.values())

    def first_deadline_ms(self, otherwise: int) -> int:
        """Return the earliest deadline of the parked fetches, or ``otherwise`` if there is none."""
        return min([_deadline_ms(fetch) for fetch in self.waiting.values()], default=otherwise)

    def take_overdue(self, now_ms: int) -> list[Received[ReplicaFetchRequest]]:
        """Remove and return the fetches whose deadline has passed."""
        overdue = [(key, fetch) for key, fetch in self.waiting.items() if _deadline_ms(fetch) <= now_ms]
        for key, _ in overdue:
            del self.waiting[key]
        return [fetch for _, fetch in overdue]

    def drop(self, request: RequestId) -> None:
        """Drop a fetch whose connection is closed."""
        for key in [key for key, fetch in self.waiting.items() if fetch.request == request]:
            del self.waiting[key]


def _deadline_ms(fetch: Received[ReplicaFetchRequest]) -> int:
    return deadline_ms(fetch.now_ms, fetch.message.max_wait_ms)
