"""A queue as a state machine: one group on one partition, at the partition's leader (KIP-932 share partition).

The leader's queues role (``actors/queues``) or the simulator feeds it: ``loaded`` once, then ``step`` for each event.
What it decides about records is stored before it is answered. Locks are in memory only: a new leader has none, and
everything that was locked is available again. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from raylog.base.errors import (
    InconsistentGroupProtocol,
    InvalidRequest,
    LimitReached,
    NonEmptyGroup,
    RaylogError,
    UnknownMemberId,
)
from raylog.base.ids import EARLIEST, LATEST
from raylog.core.decision import RequestId, Story
from raylog.core.outbox import Outbox
from raylog.core.queues import events as ev
from raylog.core.queues.acknowledging import Acknowledging
from raylog.core.queues.book import RecordBook
from raylog.core.queues.deadlines import Deadlines
from raylog.core.queues.decision import QueueDecision
from raylog.core.queues.key_queues import KeyQueues
from raylog.core.queues.letters import Copies, DeadLetters
from raylog.core.queues.origins import OF
from raylog.core.queues.policy import NO_LIMIT, QueuePolicy, checked, policy_of
from raylog.core.queues.records import QueueChange
from raylog.core.queues.states import ACQUIRED, ARCHIVING, AVAILABLE, DEAD, DONE, NAMES, WAITING, Cell
from raylog.core.received import Received
from raylog.protocol.queues import QueueAcknowledgeRequest, QueuePeeked, QueueRange

MEMBERS_MAX: Final = 10_000
"""Most members of a queue at one partition."""
MEMBER_CHARACTERS_MAX: Final = 1_024
PEEK_MAX: Final = 1_000
"""Most ranges in one answer to :meth:`QueueMachine.peek`."""
LEASES_A_MS: Final = 1_000
"""A leader's leases begin at its start time in milliseconds, times this. So the leases of successive leaders differ, as
long as no leader makes more hand-outs per millisecond."""
REACH: Final = 8
"""With order by key, a key gives a fetch records within ``REACH`` times as many offsets as the fetch may get records.
A smaller reach would lock more keys for one member, a larger one would have it read more records of others."""


class QueueMachine:
    """One queue in one leadership.

    Invariants: at most one member holds a record; a record that is finished is never handed out again; hand-outs of a
    record that was handed out before wait until the earlier count is stored.
    """

    def __init__(self, stored: QueueChange, topic: Mapping[str, str], *, is_later: bool) -> None:
        """Begin with the stored state; ``topic`` is the topic's configuration. Nothing is decided before ``loaded``.

        ``is_later``: whether the partition was added after the group began to work on the topic. Raises InvalidConfig
        for settings that no longer fit.
        """
        self._is_later = is_later
        self._stored = stored
        self._topic = topic
        self.settings: Mapping[str, str] = dict(stored.settings or {})
        self.policy = policy_of(self.settings, topic)
        self.members: dict[str, int] = {}
        """When each member sent its last request."""
        self._wall_ahead_ms = 0
        self._number = 0
        self._lease = 0
        """Number of the last hand-out."""
        self._unstored: list[tuple[int, int, int]] = []
        """(number, first, end) of hand-outs whose counts are not stored yet."""
        self.counters: Counter[str] = Counter()
        self.story = Story()
        self.is_new = stored.start < 0
        """Whether no member has ever opened it: the first one decides where the queue begins."""
        self._rebuild(RecordBook(max(0, stored.start), by_key=self.policy.by_key))

    def _rebuild(self, book: RecordBook) -> None:
        """Begin with a book: make the other parts for it."""
        self.book = book
        self._deadlines = Deadlines()
        self.key_queues = KeyQueues(book.start, book.is_available) if self.policy.by_key else None
        self.letters = DeadLetters(book, self.policy, self._stored.letter_box)
        self.copies = Copies(book, self.policy, self._stored.copy_box, self.letters)
        self._acknowledging = Acknowledging(
            book, self.policy, self._deadlines, self.key_queues, self.letters, self.copies
        )
        self._read_end = book.start if self._topic.get(OF) else None
        """In a retry topic, the end of the copies whose earlier hand-outs are known; None = it is no retry topic."""

    # ------------------------------------------------------------ life

    def loaded(self, now_ms: int, wall_ms: int) -> Outbox[ev.Effect]:
        """Begin to serve. ``wall_ms`` is the time of day at ``now_ms``: stored deadlines are times of day."""
        self._wall_ahead_ms = wall_ms - now_ms
        self._lease = wall_ms * LEASES_A_MS  # above the leases of earlier leaders
        self.book.load(self._stored.ranges, self._wall_ahead_ms)
        decision = self._decision("loaded", now_ms)
        self.letters.resume(decision)
        self.copies.resume(decision)
        return self._finish(decision)

    def step(self, event: ev.Event) -> Outbox[ev.Effect]:
        """Handle one event and return its effects."""
        self.story.append((event.now_ms, event.cause, type(event).__name__))
        decision = self._decision(event.cause, event.now_ms)
        locked, unfinished = self.book.counts[ACQUIRED], self.book.unfinished
        self._acknowledging.expire(decision)
        if isinstance(event, Received):
            try:
                self._answer(event, decision)
            except RaylogError as refusal:
                if self.is_new or isinstance(event, ev.Take):  # no state to prove; a fetch's member opens it again
                    decision.refuse(event.request, refusal)
                else:
                    decision.refuse_proved(event.request, refusal)
        else:
            self._take_note(event, decision)
        # Any step may have made room for a fetch that waits because too many records are locked or unfinished.
        decision.wakes |= self.book.counts[ACQUIRED] < locked or self.book.unfinished < unfinished
        return self._finish(decision)

    def _answer(self, event: ev.Request, decision: QueueDecision) -> None:
        match event:
            case ev.Take():
                self._take(event, decision)
            case ev.Opened():
                self._opened(event, decision)
            case ev.Reset():
                self._reset(event, decision)
            case _:
                self._acknowledged(event.message, event.request, decision)

    def _take_note(self, event: ev.Occurrence, decision: QueueDecision) -> None:
        match event:
            case ev.ChangeStored():
                self._unstored = [row for row in self._unstored if row[0] > event.number]
                decision.wakes = True
            case ev.Scanned():
                self._scanned(event, decision)
            case ev.Tick():
                pass  # what is due is handled in every step
            case ev.MemberLeft():
                if self.members.pop(event.member, None) is not None:
                    self._release_held(event.member, decision)
            case ev.LogStarts():
                self._log_starts(event, decision)
            case ev.LetterBoxFound():
                self._sender(event).box_found(event, decision)
            case ev.LettersStored():
                self._sender(event).stored(event, decision)
            case ev.LettersRefused():
                self._sender(event).refused(event, decision)
            case ev.Reconfigured():
                self._reconfigured(event, decision)
            case _:
                assert_never(event)

    def _decision(self, cause: str, now_ms: int) -> QueueDecision:
        return QueueDecision(cause, now_ms, self.counters, self.story)

    def _finish(self, decision: QueueDecision) -> Outbox[ev.Effect]:
        self.copies.go_on(decision)
        self.letters.go_on(decision)
        self._number += 1
        for first, end in decision.first_counts:
            self._unstored.append((self._number, first, end))
            decision.marks = True
        return decision.finish(self.book, self._wall_ahead_ms, self._number)

    # ------------------------------------------------------------ members

    def _opened(self, event: ev.Opened, decision: QueueDecision) -> None:
        member = event.message.member_id
        if member not in self.members:
            self._check_new_member(member)
        settings = checked(event.message.settings)
        others = self.members.keys() - {member}
        if settings != self.settings:
            policy = policy_of(settings, self._topic)
            if others:
                raise InconsistentGroupProtocol(_disagreement(settings, self.settings))
            self.settings = decision.settings = settings
            self._change_policy(policy)
        elif not self.members:
            self._change_policy(policy_of(settings, self._topic))
        if self.is_new:
            self._begin_at(event.readable_end if self._starts_latest() else event.log_start)
        if member in self.members:  # it began again, and knows none of the locks that it had
            self._release_held(member, decision)
        self.members[member] = decision.now_ms
        decision.reply(event.request, [self.policy.lock_ms, self.policy.by_key])

    def _check_new_member(self, member: str) -> None:
        """Raise LimitReached or InvalidRequest if it may not become a member."""
        if len(member) > MEMBER_CHARACTERS_MAX:
            raise InvalidRequest(f"A member's id has {MEMBER_CHARACTERS_MAX} characters at most, not {len(member)}.")
        if len(self.members) >= MEMBERS_MAX:
            raise LimitReached(
                f"The queue has {MEMBERS_MAX} members in this partition, the most; stop some, or spread them over more "
                "partitions."
            )

    def _starts_latest(self) -> bool:
        """Whether a new queue begins at the end of the log.

        Never in a partition that was added while the group worked already, or in the group's retry topic.
        """
        return self.policy.starts_latest and not self._is_later and not self.is_retry_topic

    def _begin_at(self, start: int) -> None:
        """Begin at an offset, with nothing known of its records."""
        self.is_new = False
        self._stored = QueueChange(start, (), None, self.letters.box, copy_box=self.copies.box)
        book = RecordBook(start, by_key=self.policy.by_key)
        book.reset(start)
        self._rebuild(book)

    def _reconfigured(self, event: ev.Reconfigured, decision: QueueDecision) -> None:
        """Take the topic's settings. Another order waits until there are no members: these were given the old one."""
        self._topic = event.topic
        policy = policy_of(self.settings, self._topic)
        self._change_policy(replace(policy, by_key=self.policy.by_key) if self.members else policy)
        decision.wakes = True

    def _change_policy(self, policy: QueuePolicy) -> None:
        """Take other settings; the order only changes while there are no members, so nothing is locked then."""
        was_by_key = self.policy.by_key
        self.policy = self._acknowledging.policy = self.letters.policy = self.copies.policy = policy
        if policy.by_key == was_by_key:
            return
        book = RecordBook(self.book.start, by_key=policy.by_key)
        for first, end, cell in self.book.pieces(self.book.start, self.book.end):
            book.fill(first, end, cell)
        self._acknowledging.book = self.letters.book = self.copies.book = self.book = book
        self.key_queues = KeyQueues(book.start, book.is_available) if policy.by_key else None
        self._acknowledging.key_queues = self.key_queues

    def _release_held(self, member: str, decision: QueueDecision) -> None:
        for first, end, cell in self.book.held_by(member):
            self._acknowledging.free(first, end, cell, decision, counted=True)
            decision.count("released_by_members_that_left", end - first)

    # ------------------------------------------------------------ handing out

    def next_offset(self, readable_end: int) -> int | None:
        """Return the lowest offset below ``readable_end`` that may be handed out now; None = there is none."""
        if self.book.counts[ACQUIRED] >= self.policy.acquired_max:
            return None
        if self.key_queues is not None:
            return self.key_queues.first_ready()
        if self._read_end is not None:
            readable_end = min(readable_end, self._read_end)
        again = self.book.next_again()
        if again is not None and again >= readable_end:
            return None
        if again is not None and not self._is_unstored(again, again + 1):
            return again
        fresh = self.book.end
        return fresh if fresh < readable_end and not self.is_full else None

    @property
    def is_full(self) -> bool:
        """Whether so many records are unfinished that no fresh ones are handed out."""
        return self.book.unfinished >= self.policy.window_max

    def is_behind(self, log_start: int) -> bool:
        """Return whether records below the log's start are still to be read or handed out: `LogStarts` has to end them.

        Records that members hold there do not count: they may still be acknowledged, and the book's start waits for
        them.
        """
        if log_start <= self.book.start:
            return False
        read_end = self.book.end if self._read_end is None else self._read_end
        if min(self.book.end, read_end if self.key_queues is None else self.key_queues.scanned_end) < log_start:
            return True
        return any(cell.state in (AVAILABLE, WAITING) for _, _, cell in self.book.pieces(self.book.start, log_start))

    def next_scan(self, readable_end: int) -> int | None:
        """Return the offset from which records have to be scanned before more can be handed out; None = nowhere.

        With order by key the scan finds their keys, in a retry topic how often they were handed out before.
        """
        read_end = self._read_end if self.key_queues is None else self.key_queues.scanned_end
        if read_end is None:
            return None
        ahead = self.book.unfinished + max(0, read_end - self.book.end)
        if self.key_queues is not None:  # key queues have an entry for each scanned record until it is finished
            ahead = len(self.key_queues.offsets) + self.book.counts[ARCHIVING]
        scan = self.book.first_unfinished(max(read_end, self.book.start))
        return scan if scan < readable_end and ahead < self.policy.window_max else None

    def _take(self, event: ev.Take, decision: QueueDecision) -> None:
        member = event.message.member_id
        if member not in self.members:
            raise UnknownMemberId(f"The queue does not know the member {member!r}; open it again.")
        self.members[member] = decision.now_ms
        left = min(event.message.max_records, self.policy.acquired_max - self.book.counts[ACQUIRED])
        if member in decision.silent:
            left = 0  # the fetch may be that of a member that hangs: it ends without records
        ranges = self._taken_by_key(event, left) if self.key_queues is not None else self._taken(event, left)
        handed: list[QueueRange] = []
        self._lease += 1
        for first, end, cell in self._without_gaps(ranges, event.gaps):
            count = cell.tries + 1
            until_ms = self._deadlines.add(decision.now_ms, self.policy.lock_ms, first, end)
            lock = Cell(ACQUIRED, count, member, until_ms, decision.now_ms, lease=self._lease)
            self.book.put(first, end, lock, is_stored=count > 1)
            if count > 1:
                self._unstored.append((self._number + 1, first, end))
                decision.marks = True
                decision.count("handed_out_again", end - first)
            decision.count("handed_out", end - first)
            handed.append(QueueRange(first, end, count, self._lease))
        hand = ev.Hand(cause=decision.cause, request=event.request, ranges=handed, lock_ms=self.policy.lock_ms)
        decision.now.append(hand)

    def _without_gaps(
        self, ranges: Sequence[tuple[int, int, Cell]], gaps: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int, Cell]]:
        """Yield the parts of ranges that have records; finish the gaps, so that no member has to acknowledge them."""
        for first, end, cell in ranges:
            for low, high in gaps:
                if high <= first or low >= end:
                    continue
                if first < low:
                    yield first, low, cell
                self._acknowledging.pass_over(max(first, low), min(end, high))
                first = high
            if first < end:
                yield first, end, cell

    def _taken(self, event: ev.Take, left: int) -> list[tuple[int, int, Cell]]:
        """Return what a member gets, in order: first records that are available again, then fresh ones."""
        found: list[tuple[int, int, Cell]] = []
        stop = event.end if self._read_end is None else min(event.end, self._read_end)
        for first, end, cell in self.book.available(event.first, stop):
            if left <= 0:
                return found
            if self._is_unstored(first, end):
                continue
            if self._is_last_try(cell):  # handed out alone: if it kills its member, no other record suffers
                return found or [(first, first + 1, cell)]
            end = min(end, first + left)
            found.append((first, end, cell))
            left -= end - first
        fresh = self.book.end
        if left > 0 and event.first <= fresh < stop:
            end = min(stop, fresh + left, fresh + self.policy.window_max - self.book.unfinished)
            if fresh < end:
                found.append((fresh, end, Cell(AVAILABLE)))
        return found

    def _taken_by_key(self, event: ev.Take, left: int) -> list[tuple[int, int, Cell]]:
        key_queues = self.key_queues
        if key_queues is None or left <= 0:
            return []
        found: list[tuple[int, int, Cell]] = []
        taken = key_queues.take(event.first, event.end, left, REACH * left)
        for number, (first, end) in enumerate(taken):
            cell = self.book.at(first)
            if (self._unstored and self._is_unstored(first, end)) or (self._is_last_try(cell) and found):
                for offset, _ in taken[number:]:
                    key_queues.freed(offset)
                break
            if found and found[-1][1] == first and found[-1][2] == cell:
                found[-1] = (found[-1][0], end, cell)
            else:
                found.append((first, end, cell))
            if self._is_last_try(cell):
                for offset, _ in taken[number + 1 :]:
                    key_queues.freed(offset)
                break
        return found

    def _is_last_try(self, cell: Cell) -> bool:
        limit = self.policy.delivery_limit
        return limit != NO_LIMIT and cell.tries > 0 and cell.tries + 1 >= limit

    def _is_unstored(self, first: int, end: int) -> bool:
        return any(first < stop and begin < end for _, begin, stop in self._unstored)

    def _scanned(self, event: ev.Scanned, decision: QueueDecision) -> None:
        if self.key_queues is not None:
            self._keys_scanned(self.key_queues, event)
        for place, tries in event.tries:
            self.book.inherit(place, tries)
        if self._read_end is not None:
            self._read_end = max(self._read_end, event.end)
        decision.wakes = True

    def _keys_scanned(self, key_queues: KeyQueues, event: ev.Scanned) -> None:
        offset = max(event.first, key_queues.scanned_end)
        fresh = self.book.end
        for place, key in event.keys:
            if place < offset:
                continue
            if offset < place:
                self._pass_over(offset, place)
            if place >= fresh or self.book.at(place).state in (AVAILABLE, ACQUIRED, WAITING):
                key_queues.add(place, key)
            offset = place + 1
        self._pass_over(offset, event.end)
        key_queues.scanned_end = max(key_queues.scanned_end, event.end)

    def _pass_over(self, first: int, end: int) -> None:
        """Finish offsets without records."""
        for low, high, cell in self.book.pieces(first, end):
            if cell.state == AVAILABLE:
                self.book.put(low, high, DONE)
        if end > self.book.end and first < end:
            self.book.put(max(first, self.book.end), end, DONE)

    # ------------------------------------------------------------ the rest

    def _acknowledged(self, message: QueueAcknowledgeRequest, request: RequestId, decision: QueueDecision) -> None:
        member = message.member_id
        if member in self.members:
            self.members[member] = decision.now_ms
        failures: list[object] = []
        for verdict in message.verdicts:
            failures += self._acknowledging.apply(member, verdict, decision)
        decision.reply(request, [failures, self.copies.count > 0, self.policy.lock_ms, decision.shorter])

    def _log_starts(self, event: ev.LogStarts, decision: QueueDecision) -> None:
        for first, end, cell in self.book.pieces(self.book.start, event.offset):
            if cell.state in (AVAILABLE, WAITING):
                self._acknowledging.bury(first, end, decision)
                decision.count("lost_by_retention", end - first)
        if event.offset > self.book.end:
            self.book.put(self.book.end, event.offset, DEAD)
        if self.key_queues is not None:
            self.key_queues.scanned_end = max(self.key_queues.scanned_end, event.offset)
        if self._read_end is not None:
            self._read_end = max(self._read_end, event.offset)
        decision.wakes = True

    def _reset(self, event: ev.Reset, decision: QueueDecision) -> None:
        if self.members:
            raise NonEmptyGroup(f"The queue has {len(self.members)} members; stop them, and reset it then.")
        if self.letters.is_under_way or self.copies.is_under_way:
            raise InvalidRequest("Dead letters, or copies, of this queue are being stored; reset it when they are.")
        wanted = event.message.offset
        offset = {EARLIEST: event.log_start, LATEST: event.readable_end}.get(wanted, wanted)
        offset = max(event.log_start, min(offset, event.readable_end))
        self._begin_at(offset)
        decision.count("resets")
        decision.reply(event.request, [offset])

    def _sender(self, event: ev.LetterBoxFound | ev.LettersStored | ev.LettersRefused) -> DeadLetters:
        return self.copies if event.is_later else self.letters

    @property
    def is_retry_topic(self) -> bool:
        """Whether the topic has copies of records that were handed out elsewhere before."""
        return self._read_end is not None

    def next_due_ms(self) -> int | None:
        """Return when a step is due if no other event comes first; None = never."""
        due = (self._deadlines.next_ms(), self.book.next_wait_ms(), self.letters.next_ms(), self.copies.next_ms())
        return min((moment for moment in due if moment is not None), default=None)

    @property
    def is_busy(self) -> bool:
        """Whether locks run, or dead letters are under way."""
        return self.book.counts[ACQUIRED] > 0 or self.letters.count > 0 or self.copies.count > 0

    def archiving_from(self, log_start: int) -> int | None:
        """Return the lowest offset whose dead letter or copy is not stored yet, from ``log_start`` on; None = none."""
        return self.book.first_in(ARCHIVING, log_start)

    def census(self) -> dict[str, int]:
        """Return the figures of a status page: records by state, and the sizes of the book."""
        counts = {NAMES[state]: self.book.counts[state] for state in (ACQUIRED, WAITING, ARCHIVING)}
        sizes = {"window": self.book.end - self.book.start, "ranges": len(self.book), "held": self.letters.held}
        return {**counts, **sizes, "unfinished": self.book.unfinished, "full": int(self.is_full)}

    def peek(self, first: int, limit: int, now_ms: int) -> list[QueuePeeked]:
        """Return the ranges from an offset on."""
        rows: list[QueuePeeked] = []
        for low, high, cell in self.book.pieces(first, self.book.end)[: min(limit, PEEK_MAX)]:
            left_ms = max(0, cell.until_ms - now_ms) if cell.state in (ACQUIRED, WAITING) else -1
            reason, message, _ = cell.cause or ("", "", -1)
            rows.append(QueuePeeked(low, high, NAMES[cell.state], cell.tries, cell.member, left_ms, reason, message))
        return rows

    def validate(self) -> None:
        """Raise ValueError unless the invariants of the parts hold."""
        self.book.validate()
        if self.key_queues is not None:
            self.key_queues.validate(lambda offset: self.book.at(offset).state == ACQUIRED)


def _disagreement(wanted: Mapping[str, str], have: Mapping[str, str]) -> str:
    names = sorted(name for name in wanted.keys() | have.keys() if wanted.get(name) != have.get(name))
    rows = [f"{name}: {have.get(name, 'as the topic has it')!r}, not {wanted.get(name, 'unset')!r}" for name in names]
    return f"The members of the group have other settings ({'; '.join(rows)}); give all of them the same."
