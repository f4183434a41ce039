"""What becomes of records that were handed out: verdicts of their members, locks that run out. Pure."""

from __future__ import annotations

from raylog.base.errors import InvalidRecordState, InvalidRequest
from raylog.core.queues import events as ev
from raylog.core.queues.book import RecordBook
from raylog.core.queues.deadlines import Deadlines
from raylog.core.queues.decision import QueueDecision
from raylog.core.queues.key_queues import KeyQueues
from raylog.core.queues.letters import DeadLetters
from raylog.core.queues.policy import NO_LIMIT, QueuePolicy
from raylog.core.queues.states import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVING,
    AVAILABLE,
    DEAD,
    DONE,
    NAMES,
    POSTPONED,
    WAITING,
    Cause,
    Cell,
    shortened,
)
from raylog.protocol.queues import QueueFailure, QueueShorterLock, QueueVerdict

REJECTED = "rejected"
DELIVERY_LIMIT = "delivery_limit"
REASON_BYTES_MAX = 1_000
"""Most bytes that are kept of a verdict's message."""
REASONS_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of messages that one queue keeps: beyond them, records become dead letters without a message."""


class Acknowledging:
    """Applies verdicts to the book; owned by the machine, which replaces its parts after a reset."""

    def __init__(
        self,
        book: RecordBook,
        policy: QueuePolicy,
        deadlines: Deadlines,
        key_queues: KeyQueues | None,
        letters: DeadLetters,
        copies: DeadLetters,
    ) -> None:
        self.book = book
        self.policy = policy
        self.key_queues = key_queues
        self._deadlines = deadlines
        self._letters = letters
        self._copies = copies

    def apply(self, member: str, verdict: QueueVerdict, decision: QueueDecision) -> list[QueueFailure]:
        """Apply a verdict to those of its records that the member holds; return the failures of the others."""
        if verdict.kind not in ev.VERDICTS or verdict.first >= verdict.end or verdict.first < 0:
            return [_invalid(verdict, "This is no verdict on a range of records.")]
        if verdict.kind == ev.RETRY and verdict.delay_ms > self.policy.later_max_ms:
            sentence = (
                f"A retry is delayed by {self.policy.later_max_ms} ms at most (delay.max.ms of the topic, or "
                f"queue.retry.max.ms where delay.enable is false), not by {verdict.delay_ms}."
            )
            return [_invalid(verdict, sentence)]
        failures: list[QueueFailure] = []
        finished_end = min(verdict.end, self.book.start)
        if verdict.first < finished_end and verdict.kind not in (ev.ACCEPT, ev.GAP):
            failures.append(self._failure(verdict, verdict.first, finished_end, Cell(ACKNOWLEDGED), decision))
        for first, end, cell in self.book.pieces(verdict.first, verdict.end):
            if cell.state == ACKNOWLEDGED and verdict.kind in (ev.ACCEPT, ev.GAP):
                continue  # reported before, perhaps to a leader whose answer was lost
            if verdict.kind == ev.RETURN and cell.state == AVAILABLE and 0 < verdict.count == cell.tries:
                # Its lock ran out before this verdict came, and no member has got it since: that try does not count.
                self.book.put(first, end, Cell(AVAILABLE, cell.tries - 1))
                continue
            if (
                cell.state != ACQUIRED
                or cell.member != member
                or verdict.count not in (0, cell.tries)
                or verdict.lease not in (0, cell.lease)
                or not self._carried_out(first, end, cell, verdict, decision)
            ):
                failures.append(self._failure(verdict, first, end, cell, decision))
        if verdict.end > self.book.end:
            fresh = Cell(AVAILABLE)
            failures.append(self._failure(verdict, max(verdict.first, self.book.end), verdict.end, fresh, decision))
        return failures

    def _carried_out(self, first: int, end: int, cell: Cell, verdict: QueueVerdict, decision: QueueDecision) -> bool:
        match verdict.kind:
            case ev.ACCEPT | ev.GAP:
                self.book.put(first, end, DONE)
                self._finished(first, end, was_held=True)
                if verdict.kind == ev.ACCEPT:
                    decision.count("acknowledged", end - first)
                decision.wakes = True
            case ev.RETURN if verdict.delay_ms > 0 and self._has_room(end - first):
                decision.count("released", end - first)
                until_ms = decision.now_ms + min(verdict.delay_ms, self.policy.retry_max_ms)
                self.book.put(first, end, Cell(WAITING, cell.tries - 1, until_ms=until_ms))
                self._freed(first, end, decision)
            case ev.RELEASE | ev.RETURN:
                decision.count("released", end - first)
                self.free(first, end, cell, decision, counted=verdict.kind == ev.RELEASE)
            case ev.REJECT:
                decision.count("rejected", end - first)
                self._archive(first, end, cell, Cause(REJECTED, verdict.message), decision)
            case ev.RETRY:
                self._retry(first, end, cell, verdict, decision)
            case _:
                return self._renew(first, end, cell, verdict.delay_ms, decision)
        return True

    def _has_room(self, count: int) -> bool:
        """Whether so many more records may wait."""
        return self.policy.waiting_max - self.book.counts[WAITING] >= count

    def _renew(self, first: int, end: int, cell: Cell, lock_ms: int, decision: QueueDecision) -> bool:
        latest_ms = cell.since_ms + self.policy.lock_max_ms
        wanted_ms = self.policy.lock_ms if lock_ms < 0 else lock_ms
        duration_ms = min(wanted_ms, latest_ms - decision.now_ms)
        if duration_ms <= 0:
            return False
        if duration_ms < wanted_ms:
            decision.shorter.append(QueueShorterLock(first, end, cell.tries, cell.lease, duration_ms))
        until_ms = self._deadlines.add(decision.now_ms, duration_ms, first, end)
        self.book.put(first, end, cell._replace(until_ms=until_ms), is_stored=False)
        decision.count("renewed", end - first)
        return True

    def _retry(self, first: int, end: int, cell: Cell, verdict: QueueVerdict, decision: QueueDecision) -> None:
        decision.count("retried", end - first)
        if self._is_over_limit(cell):
            self._archive(first, end, cell, Cause(DELIVERY_LIMIT, verdict.message), decision)
            return
        room = self.policy.waiting_max - self.book.counts[WAITING]
        if verdict.delay_ms >= 0:
            pieces = [(first, end, verdict.delay_ms)]
        elif self.policy.backoff.jitter:
            pieces = [
                (offset, offset + 1, self.policy.backoff.after_ms(cell.tries, offset)) for offset in range(first, end)
            ]
        else:
            pieces = [(first, end, self.policy.backoff.after_ms(cell.tries, first))]
        for low, high, delay_ms in pieces:
            if delay_ms > self.policy.retry_max_ms and self.policy.later_max_ms > self.policy.retry_max_ms:
                self._postpone(low, high, cell, min(delay_ms, self.policy.later_max_ms), decision)
                continue
            delay_ms = min(delay_ms, self.policy.retry_max_ms)
            if delay_ms > 0 and room >= high - low:
                waiting = Cell(WAITING, cell.tries, until_ms=decision.now_ms + delay_ms)
                self.book.put(low, high, waiting)
                room -= high - low
            else:
                self.book.put(low, high, Cell(AVAILABLE, cell.tries))
                if cell.tries == 1:
                    decision.first_counts.append((low, high))
                decision.wakes = True
            self._freed(low, high, decision)

    def _postpone(self, first: int, end: int, cell: Cell, delay_ms: int, decision: QueueDecision) -> None:
        """Have copies wait in ``__scheduled``: these records are finished when their copies are stored.

        From now on they hold up no other record of their keys.
        """
        due_ms = decision.now_ms + delay_ms
        self.book.put(first, end, Cell(ARCHIVING, cell.tries, until_ms=due_ms, cause=Cause(POSTPONED)))
        self._copies.add(first, end)
        self._finished(first, end, was_held=True)
        decision.wakes = True

    def free(self, first: int, end: int, cell: Cell, decision: QueueDecision, *, counted: bool) -> None:
        """Make locked records available, or dead letters if they were handed out too often.

        ``counted``: whether this hand-out counts as a try.
        """
        if counted and self._is_over_limit(cell):
            self._archive(first, end, cell, Cause(DELIVERY_LIMIT), decision)
            return
        count = cell.tries if counted else cell.tries - 1
        # A first hand-out is not stored until it ends; the next waits for that, so a crash loses at most one count.
        is_first = counted and cell.tries == 1
        self.book.put(first, end, Cell(AVAILABLE, count), is_stored=is_first or (not counted and cell.tries > 1))
        if is_first:
            decision.first_counts.append((first, end))
        self._freed(first, end, decision)
        decision.wakes = True

    def pass_over(self, first: int, end: int) -> None:
        """Finish offsets that were to be handed out, but have no records."""
        self.book.put(first, end, DONE)
        self._finished(first, end, was_held=True)

    def bury(self, first: int, end: int, decision: QueueDecision) -> None:
        """Finish records that were deleted from the log and that no member holds."""
        self.book.put(first, end, DEAD)
        self._finished(first, end, was_held=False)

    def expire(self, decision: QueueDecision) -> None:
        """End the locks that have run out, and the waits whose time has come."""
        now_ms = decision.now_ms
        for due in self._deadlines.take(now_ms):
            for first, end, cell in self.book.pieces(due.first, due.end):
                if cell.state == ACQUIRED and cell.until_ms <= now_ms:
                    decision.count("locks_expired", end - first)
                    decision.silent[cell.member] = None
                    self.free(first, end, cell, decision, counted=True)
        for first, end, cell in self.book.take_waits(now_ms):
            self.book.put(first, end, Cell(AVAILABLE, cell.tries), is_stored=False)
            if self.key_queues is not None:
                for offset in range(first, end):
                    self.key_queues.available_again(offset)
            decision.wakes = True

    def _archive(self, first: int, end: int, cell: Cell, cause: Cause, decision: QueueDecision) -> None:
        message = shortened(cause.message, REASON_BYTES_MAX)
        if self.book.reason_bytes + (end - first) * len(message.encode()) > REASONS_BYTES_MAX:
            decision.count("reasons_dropped", end - first)
            message = ""
        cause = cause._replace(message=message)
        self.book.put(first, end, Cell(ARCHIVING, cell.tries, cause=cause))
        self._letters.add(first, end)
        self._finished(first, end, was_held=True)
        decision.wakes = True

    def _finished(self, first: int, end: int, *, was_held: bool) -> None:
        if self.key_queues is not None:
            for offset in range(first, end):
                self.key_queues.finished(offset, was_held=was_held)

    def _freed(self, first: int, end: int, decision: QueueDecision) -> None:
        if self.key_queues is not None:
            for offset in range(first, end):
                self.key_queues.freed(offset)

    def _is_over_limit(self, cell: Cell) -> bool:
        return self.policy.delivery_limit != NO_LIMIT and cell.tries >= self.policy.delivery_limit

    def _failure(
        self, verdict: QueueVerdict, first: int, end: int, cell: Cell, decision: QueueDecision
    ) -> QueueFailure:
        decision.count("verdicts_refused", end - first)
        if cell.state == ACQUIRED:
            what = f"another hand-out of it, the {cell.tries}. one, holds it now"
        else:
            what = f"it is {NAMES[cell.state]} now"
        sentence = (
            f"The lock on offset {first} has run out, or its leader was replaced: {what}. What was done for it may be "
            "done again by the next member that gets it."
        )
        return QueueFailure(first, end, InvalidRecordState.code, sentence, verdict.count, verdict.lease)


def _invalid(verdict: QueueVerdict, sentence: str) -> QueueFailure:
    return QueueFailure(verdict.first, verdict.end, InvalidRequest.code, sentence, verdict.count, verdict.lease)
