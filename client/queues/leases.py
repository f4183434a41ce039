"""The locks of one partition's records, as their consumer knows them: which are held, until when, which renewals wait.

The leader keeps the locks; this is a conservative view of them. A lock is counted from the time when the fetch was sent
plus the time for which the leader says that the fetch waited, so at the latest from when the leader granted it. Only an
answer extends it. So a consumer that was paused for longer than its locks knows that they are lost, however late it
reads answers. `messages`, `holds`, `drop` and `request` may be called from any thread: they use only dicts, whose
single operations are atomic. Times are seconds of the monotonic clock, given by the caller. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from raylog.client.queues.message import Hand, Holder, Lock, QueueMessage
from raylog.client.queues.verdicts import Settled
from raylog.core.queues import events as ev
from raylog.protocol.queues import QueueAcknowledgeReply, QueueFetchReply, QueueVerdict

ROUNDING_S: Final = 0.001
"""Subtracted from deadlines, because leaders count in whole milliseconds."""
RENEWED_AT: Final = 0.7
"""A lock is renewed when less than this share of its time is left."""

Lease = tuple[int, Hand]
"""Offset and hand-out, by which verdicts and their answers name a record."""


class LeaseBook:
    """The messages of one partition that one consumer holds.

    Invariant: a message that `holds` is true for is locked at the leader for this consumer and this hand-out; except
    that the leader may have been replaced, or have noticed the end of the connection, before this side did.
    """

    def __init__(self) -> None:
        """Nothing is held."""
        self.session = 0
        """Incremented when all locks are lost, with the connection or the leader."""
        self.lock_s = 30.0
        """The duration of the group's locks, as last reported by the leader."""
        self._held: dict[Lease, QueueMessage] = {}
        self._requested: set[Lease] = set()
        """Leases with a renewal that waits to be sent or answered."""

    def __len__(self) -> int:
        """How many messages are held: locked and not settled."""
        return len(self._held)

    def messages(self) -> list[QueueMessage]:
        """The messages that are held: locked and not settled. From any thread."""
        return list(self._held.values())

    def is_current(self, message: QueueMessage) -> bool:
        """Whether a message was handed out in the present session."""
        return message._lock.session == self.session

    def holds(self, message: QueueMessage, now: float) -> bool:
        """Whether a message is certainly still locked at this time. From any thread."""
        is_held = self._held.get(_lease(message)) is message and self.is_current(message)
        return is_held and message._lock.deadline > now

    # Hand-outs

    def locks(self, source: Holder, reply: QueueFetchReply, sent_s: float, now: float) -> list[Lock]:
        """The locks of the ranges in a fetch's answer; [] if they have expired already. `sent_s`: of the request."""
        self.lock_s = reply.lock_ms / 1000
        deadline = sent_s + (reply.waited_ms + reply.lock_ms) / 1000 - ROUNDING_S
        if deadline <= now:
            return []
        return [Lock(source, self.session, (row.count, row.lease), deadline, now) for row in reply.ranges]

    def take_in(self, messages: Sequence[QueueMessage]) -> None:
        """Add messages that were just handed out."""
        self._held.update((_lease(message), message) for message in messages)

    def drop(self, message: QueueMessage) -> bool:
        """Remove a message that is settled; return whether it was held. From any thread."""
        lease = _lease(message)
        self._requested.discard(lease)
        return self._held.pop(lease, None) is not None

    def lose_all(self) -> None:
        """Remove all messages and begin a new session: the leader has dropped the locks, or was replaced."""
        self.session += 1
        self._held.clear()
        self._requested.clear()

    # Renewals

    def request(self, message: QueueMessage, lock_ms: int) -> Settled:
        """A request to lock a message for `lock_ms` from now (-1 = the group's lock). From any thread.

        The lock changes when the leader has answered.
        """
        self._requested.add(_lease(message))
        return message.record.offset, message._lock.hand, ev.RENEW, lock_ms, ""

    def renewals(self, now: float) -> list[Settled]:
        """Requests for the locks that expire soon, and for expired ones: the leader decides whether they still hold."""
        soon = now + self.lock_s * RENEWED_AT
        return [
            self.request(message, -1)
            for lease, message in list(self._held.items())
            if lease not in self._requested and message._lock.deadline <= soon
        ]

    def expire(self, now: float) -> None:
        """Remove the messages whose locks have expired; for a consumer without `renew_locks`."""
        for message in self.messages():
            if message._lock.deadline <= now:
                self.drop(message)

    def answered(self, verdicts: Sequence[QueueVerdict], reply: QueueAcknowledgeReply, sent_s: float) -> None:
        """Apply the leader's answer to verdicts: renewed locks get new deadlines, lost ones are removed."""
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
        if key not in fresh:  # messages that were handed out together share a lock
            deadline = sent_s + lock_ms / 1000 - ROUNDING_S
            fresh[key] = Lock(lock.source, lock.session, lock.hand, deadline, lock.since)
        message._lock = fresh[key]

    def unanswered(self, verdicts: Sequence[QueueVerdict]) -> None:
        """A request was abandoned: its renewals may be requested again."""
        for row in verdicts:
            if row.kind == ev.RENEW:
                self._requested.difference_update(
                    (offset, (row.count, row.lease)) for offset in range(row.first, row.end)
                )


def _lease(message: QueueMessage) -> Lease:
    return message.record.offset, message._lock.hand
