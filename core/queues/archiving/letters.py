"""The dead letters of one queue: one batch under way at a time, each batch once in the topic. Pure.

A record that becomes a dead letter is ARCHIVING. Its place in the sequence of the dead letters is stored before the
letter is sent, and it is ARCHIVED when the letter is committed. A new leader sends again what has a sequence: that is
one batch, the same as before, so the topic's leader knows it and stores it once.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Final

from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.core.queues.book import RecordBook
from raylog.core.queues.decision import QueueDecision
from raylog.core.queues.events import FindLetterBox, Letter, LetterBoxFound, LettersRefused, LettersStored, SendLetters
from raylog.core.queues.policy import QueuePolicy
from raylog.core.queues.records import LetterBox
from raylog.core.queues.states import ARCHIVING, DEAD, POSTPONED, Cause, Cell

LETTERS_MAX: Final = 100
"""Most dead letters of one batch."""
RETRY_MS: Final = 1_000
"""Pause before a topic of dead letters that was not there is looked for again."""
SEQUENCE_MASK: Final = 2**31 - 1


class DeadLetters:
    """Which records wait for a dead letter, and which letters are under way.

    Invariants: the letters under way have the sequences from ``_first_sequence`` on, without gaps, and are all
    ARCHIVING in the book; ``box.next_sequence`` is behind them.
    """

    is_later: ClassVar[bool] = False

    def __init__(self, book: RecordBook, policy: QueuePolicy, box: LetterBox | None) -> None:
        """Begin with what was stored; :meth:`resume` sends what was under way."""
        self.book = book
        self.policy = policy
        self.box = box
        self._waiting: deque[tuple[int, int]] = deque()
        self._under_way: list[Letter] = []
        self._first_sequence = 0
        self._is_looking = False
        self._retry_at_ms: int | None = None
        self._batch_max = LETTERS_MAX
        self._keeps_bodies = True

    @property
    def count(self) -> int:
        """How many records are ARCHIVING."""
        return len(self._under_way) + sum(end - first for first, end in self._waiting)

    @property
    def is_under_way(self) -> bool:
        """Whether letters are being sent, or may have been."""
        return bool(self._under_way)

    def next_ms(self) -> int | None:
        """Return when the topic is looked for again; None = it is not missing."""
        return self._retry_at_ms

    def add(self, first: int, end: int) -> None:
        """Take records that have become ARCHIVING."""
        self._waiting.append((first, end))

    def resume(self, decision: QueueDecision) -> None:
        """Take what is ARCHIVING in a book that was loaded, and send again what may have been sent."""
        for first, end, cell in self.book.pieces(self.book.start, self.book.end):
            if cell.cause is None or not self._is_own(cell):
                continue
            if cell.cause.sequence < 0:
                self._waiting.append((first, end))
            else:
                self._under_way.append(Letter(first, cell.tries, cell.cause, until_ms=cell.until_ms))
        if self._under_way and self.box is not None:
            behind = self.box.next_sequence
            # By distance from the end: sequences begin again at 0 behind the greatest.
            self._under_way.sort(key=lambda letter: -((behind - letter.cause.sequence) & SEQUENCE_MASK))
            self._first_sequence = self._under_way[0].cause.sequence
            self._send(decision)

    def go_on(self, decision: QueueDecision) -> None:
        """Begin the next batch, if one is due: the last thing that a step does."""
        if self._under_way or not self._waiting or self._is_looking:
            return
        if self._retry_at_ms is not None:
            if decision.now_ms < self._retry_at_ms:
                return
            self._retry_at_ms = None
        topic = self._topic()
        if self.box is None or self.box.topic != topic:
            self._is_looking = True
            decision.now.append(FindLetterBox(cause=decision.cause, topic=topic, is_later=self.is_later))
            return
        sequence = self._first_sequence = self.box.next_sequence
        for offset, cell in self._next_records():
            cause = (cell.cause or Cause("rejected"))._replace(sequence=sequence)
            self.book.put(offset, offset + 1, cell._replace(cause=cause))
            self._under_way.append(Letter(offset, cell.tries, cause, self._keeps_bodies, cell.until_ms))
            sequence = (sequence + 1) & SEQUENCE_MASK
        if self._under_way:
            self._note(self.box._replace(next_sequence=sequence), decision)
            self._send(decision)

    def _topic(self) -> str:
        return self.policy.dead_letter_topic or UNDELIVERABLE_TOPIC

    def _is_own(self, cell: Cell) -> bool:
        return cell.state == ARCHIVING and (cell.cause is None or cell.cause.reason != POSTPONED)

    def _note(self, box: LetterBox, decision: QueueDecision) -> None:
        """Have a box stored."""
        self.box = decision.letter_box = box

    def box_found(self, event: LetterBoxFound, decision: QueueDecision) -> None:
        """Take where letters go; where that is nowhere they wait, or are dropped if the policy has it so."""
        self._is_looking = False
        if event.box is not None:
            decision.require(event.box.topic == event.topic, "dead letters go where they are meant to go")
            self._note(event.box, decision)
        elif event.is_missing and self.policy.drops_undeliverable:
            decision.count("dead_letters_dropped", self.count)
            for first, end in self._waiting:
                self.book.put(first, end, DEAD)
            self._waiting.clear()
        else:
            decision.count("dead_letter_failures")
            self._retry_at_ms = decision.now_ms + RETRY_MS

    def stored(self, event: LettersStored, decision: QueueDecision) -> None:
        """Finish the records of the batch under way."""
        if not self._under_way or event.sequence != self._first_sequence:
            return
        for letter in self._under_way:
            self.book.put(letter.offset, letter.offset + 1, DEAD)
        decision.letters_finished += len(self._under_way)
        if not self.is_later:
            decision.count("dead_letters", len(self._under_way))
        self._under_way = []
        self._batch_max, self._keeps_bodies = LETTERS_MAX, True

    def refused(self, event: LettersRefused, decision: QueueDecision) -> None:
        """Take the batch under way back: none of its letters is in the topic, or that topic is no more."""
        if not self._under_way or event.sequence != self._first_sequence:
            return
        finished = frozenset(event.finished)
        for offset in finished:
            self.book.put(offset, offset + 1, DEAD)
        decision.count("dead_letters_in_circles", len(finished))
        remain = [letter for letter in self._under_way if letter.offset not in finished]
        taken_back = [(letter.offset, letter.offset + 1) for letter in remain]
        for letter in remain:
            cause = letter.cause._replace(sequence=-1)
            cell = Cell(ARCHIVING, letter.tries, until_ms=letter.until_ms, cause=cause)
            self.book.put(letter.offset, letter.offset + 1, cell)
        self._waiting.extendleft(reversed(taken_back))
        if event.too_large or finished or event.lost:
            # Certainly not in the topic: the sequences are used again, by fewer letters or by one without its body.
            if event.too_large:
                self._keeps_bodies = len(taken_back) > 1
                self._batch_max = max(1, len(taken_back) // 2)
            if self.box is not None:
                self._note(self.box._replace(next_sequence=self._first_sequence), decision)
        else:
            self.box = None
        self._under_way = []

    def _next_records(self) -> list[tuple[int, Cell]]:
        found: list[tuple[int, Cell]] = []
        while self._waiting and len(found) < self._batch_max:
            first, end = self._waiting.popleft()
            stop = min(end, first + self._batch_max - len(found))
            found += [(offset, self.book.at(offset)) for offset in range(first, stop)]
            if stop < end:
                self._waiting.appendleft((stop, end))
        return [(offset, cell) for offset, cell in found if self._is_own(cell)]

    def _send(self, decision: QueueDecision) -> None:
        if self.box is None:
            return
        decision.after_sync.append(
            SendLetters(
                cause=decision.cause,
                box=self.box,
                sequence=self._first_sequence,
                letters=tuple(self._under_way),
                is_later=self.is_later,
            )
        )
