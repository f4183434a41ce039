"""The leases of one partition's records at their consumer: which are held, until when, what was requested.

The leader has the one book of locks; this is a view of it that is never more generous. A lock begins at the earliest
when the request that brought it was sent, plus the time for which the leader says that it waited, and it is extended
only by an answer. So a consumer that stood still for longer than its locks knows that it has lost them, however late it
reads what was answered meanwhile. `messages`, `holds`, `drop` and `request` are called in any thread: they touch dicts
only, whose single steps are atomic. Times are seconds of the loop's clock, given by the caller. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from raylog.client.queues.message import Hand, Holder, Lock, QueueMessage
from raylog.client.queues.verdicts import Settled
from raylog.core.queues import events as ev
from raylog.protocol.queues import QueueAcknowledgeReply, QueueFetchReply, QueueVerdict

ROUNDING_S: Final = 0.001
"""Leaders count whole milliseconds."""
RENEWED_AT: Final = 0.7
"""A lock is renewed when less than this part of it is left."""

Lease = tuple[int, Hand]
"""Offset and hand-out: what verdicts and their answers are about."""


class LeaseBook:
    """What one consumer holds of one partition.

    Invariants: a message that this book holds is locked at the leader for this consumer and for this hand-out, unless
    the leader was replaced, or has seen the connection end, and this end has not learned of it yet.
    """

    def __init__(self) -> None:
        """Begin with nothing, in a session in which nothing is locked."""
        self.session = 0
        """Rises when all locks are lost: with a new connection, or another leader."""
        self.lock_s = 30.0
        """How long the group's locks are, as the leader reported last."""
        self._held: dict[Lease, QueueMessage] = {}
        self._requested: set[Lease] = set()
        """Leases of which a renewal waits to be sent, or for its answer."""

    def __len__(self) -> int:
        """How many records are held and not settled."""
        return len(self._held)

    def messages(self) -> list[QueueMessage]:
        """What is held and not settled. From any thread."""
        return list(self._held.values())

    def is_current(self, message: QueueMessage) -> bool:
        """Whether a message is of this session."""
        return message._lock.session == self.session

    def holds(self, message: QueueMessage, now: float) -> bool:
        """Whether a message's lock is known to hold at this moment. From any thread."""
        is_held = self._held.get(_lease(message)) is message and self.is_current(message)
        return is_held and message._lock.deadline > now

    # Hand-outs

    def locks(self, source: Holder, reply: QueueFetchReply, sent_s: float, now: float) -> list[Lock]:
        """The locks of an answer's ranges, whose request was sent then; [] where they have run out already."""
        self.lock_s = reply.lock_ms / 1000
        deadline = sent_s + (reply.waited_ms + reply.lock_ms) / 1000 - ROUNDING_S
        if deadline <= now:
            return []
        return [Lock(source, self.session, (row.count, row.lease), deadline, now) for row in reply.ranges]

    def take_in(self, messages: Sequence[QueueMessage]) -> None:
        """Hold messages that were just handed out."""
        self._held.update((_lease(message), message) for message in messages)

    def drop(self, message: QueueMessage) -> bool:
        """Hold a message no more: it is settled, or given back; whether it was held. From any thread."""
        lease = _lease(message)
        self._requested.discard(lease)
        return self._held.pop(lease, None) is not None

    def lose_all(self) -> None:
        """Hold nothing: the leader has forgotten the locks, or is another one."""
        self.session += 1
        self._held.clear()
        self._requested.clear()

    # Renewals

    def request(self, message: QueueMessage, lock_ms: int) -> Settled:
        """Request a lock of so many ms from the leader's answer on; it counts when it is answered. From any thread."""
        self._requested.add(_lease(message))
        return message.record.offset, message._lock.hand, ev.RENEW, lock_ms, ""

    def renewals(self, now: float) -> list[Settled]:
        """Request what would run out soon, and for what may have: the leader knows."""
        soon = now + self.lock_s * RENEWED_AT
        return [
            self.request(message, -1)
            for lease, message in list(self._held.items())
            if lease not in self._requested and message._lock.deadline <= soon
        ]

    def expire(self, now: float) -> None:
        """Hold no more what has run out: for a consumer that renews nothing."""
        for message in self.messages():
            if message._lock.deadline <= now:
                self.drop(message)

    def answered(self, verdicts: Sequence[QueueVerdict], reply: QueueAcknowledgeReply, sent_s: float) -> None:
        """Take the leader's answer to a request that was sent then: renewed until, or lost."""
        if reply.lock_ms:
            self.lock_s = reply.lock_ms / 1000
        renewals = [row for row in verdicts if row.kind == ev.RENEW]
        if not renewals:
            return
        lost = {(at, (row.count, row.lease)) for row in reply.failures for at in range(row.first, row.end)}
        shorter = {
            (at, (row.count, row.lease)): row.lock_ms for row in reply.shorter for at in range(row.first, row.end)
        }
        fresh: dict[tuple[Hand, float, int], Lock] = {}
        for row in renewals:
            lock_ms = row.delay_ms if row.delay_ms >= 0 else round(self.lock_s * 1000)
            for offset in range(row.first, row.end):
                self._renewed((offset, (row.count, row.lease)), lock_ms, lost, shorter, sent_s, fresh)

    def _renewed(
        self,
        lease: Lease,
        lock_ms: int,
        lost: Container[Lease],
        shorter: Mapping[Lease, int],
        sent_s: float,
        fresh: dict[tuple[Hand, float, int], Lock],
    ) -> None:
        self._requested.discard(lease)
        message = self._held.get(lease)
        if message is None:
            return
        if lease in lost:
            self._held.pop(lease, None)
            return
        lock, lock_ms = message._lock, shorter.get(lease, lock_ms)
        key = (lock.hand, lock.since, lock_ms)
        if key not in fresh:  # what was handed out together shares a lock
            deadline = sent_s + lock_ms / 1000 - ROUNDING_S
            fresh[key] = Lock(lock.source, lock.session, lock.hand, deadline, lock.since)
        message._lock = fresh[key]

    def unanswered(self, verdicts: Sequence[QueueVerdict]) -> None:
        """Note that a request was given up: what it requested may be requested again."""
        for row in verdicts:
            if row.kind == ev.RENEW:
                self._requested.difference_update(
                    (offset, (row.count, row.lease)) for offset in range(row.first, row.end)
                )


def _lease(message: QueueMessage) -> Lease:
    return message.record.offset, message._lock.hand
