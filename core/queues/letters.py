"""The dead letters and late copies of one queue: one batch at a time, each once in its topic (``core/lane.py``). Pure.

A record that becomes a dead letter is ARCHIVING. The letter's sequence is stored before the letter is sent, and the
record is ARCHIVED when the letter is committed. A new leader sends the letters with a sequence again: they are the same
batch as before, so the topic's leader recognises it and stores it once.

A letter that is too large for the topic even alone is held while others go on. From time to time one of the held ones
is tried again: the topic's limit may have been raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.core.lane import SEQUENCES, Lane, sequence_after
from raylog.core.queues.book import RecordBook
from raylog.core.queues.decision import QueueDecision
from raylog.core.queues.events import FindLetterBox, Letter, LetterBoxFound, LettersRefused, LettersStored, SendLetters
from raylog.core.queues.policy import QueuePolicy
from raylog.core.queues.records import LetterBox
from raylog.core.queues.states import ARCHIVING, DEAD, POSTPONED, Cause, Cell
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.message import replace

LETTERS_MAX: Final = 100
"""Most dead letters of one batch."""
RETRY_MS: Final = 1_000
"""Pause before a missing or unreachable topic of dead letters is looked up again."""
HELD_MS: Final = 10_000
"""Pause before one of the held letters is tried again."""

UNDELIVERABLE: Final = "undeliverable"
LATER: Final = "it was to be retried later, and {}"
"""Message of the dead letter of a record that cannot be copied, with the reason."""


class DeadLetters:
    """Which records wait for a dead letter, and which letters are under way.

    Invariants: the lane has one batch at most, whose letters are all ARCHIVING in the book; ``box.next_sequence`` is
    the one after them. Each letter is in the batch, waits, or is held.
    """

    is_later: ClassVar[bool] = False

    def __init__(self, book: RecordBook, policy: QueuePolicy, box: LetterBox | None) -> None:
        """Begin with what was stored; :meth:`resume` sends what was under way."""
        self.book = book
        self.policy = policy
        self.box = box
        self._waiting: deque[tuple[int, int]] = deque()
        self._lane: Lane[tuple[Letter, ...]] = Lane(RETRY_MS, RETRY_MS)
        """The batch that is sent, or may have been: the sender repeats it until the outcome is known."""
        self._is_looking = False
        self._retry_at_ms: int | None = None
        self._batch_max = LETTERS_MAX
        self._held: deque[int] = deque()
        self._held_until_ms = 0
        """When one of the held letters is tried again."""
        self._tried: int | None = None
        """Offset of the held letter that is tried, until its outcome is known."""
        self._bodiless: set[int] = set()
        """Offsets whose letters go without their bodies."""

    @property
    def count(self) -> int:
        """How many records wait for their letter to be stored."""
        sent = sum(len(letters) for letters in self._lane.batches)
        return sent + len(self._held) + sum(end - first for first, end in self._waiting)

    @property
    def held(self) -> int:
        """How many letters are held because they are too large for their topic."""
        return len(self._held)

    @property
    def is_under_way(self) -> bool:
        """Whether letters are being sent, or may have been."""
        return self._lane.is_under_way

    def next_ms(self) -> int | None:
        """Return when a missing topic, or a held letter, is tried again; None = there is nothing to try."""
        if self._retry_at_ms is not None or self.is_under_way or self._is_looking or not self._held:
            return self._retry_at_ms
        return self._held_until_ms

    def add(self, first: int, end: int) -> None:
        """Add records that have become ARCHIVING."""
        self._waiting.append((first, end))

    def resume(self, decision: QueueDecision) -> None:
        """Collect the ARCHIVING records of a loaded book, and send again what may have been sent before."""
        letters: list[Letter] = []
        for first, end, cell in self.book.pieces(self.book.start, self.book.end):
            if cell.cause is None or not self._is_own(cell):
                continue
            if cell.cause.sequence < 0:
                self._waiting.append((first, end))
            else:
                letters.append(Letter(first, cell.tries, cell.cause, until_ms=cell.until_ms))
        if letters and self.box is not None:
            behind = self.box.next_sequence
            # By distance from the end, since sequences wrap around to 0.
            letters.sort(key=lambda letter: -((behind - letter.cause.sequence) % SEQUENCES))
            self._send(letters, self.box, decision, is_again=True)

    def go_on(self, decision: QueueDecision) -> None:
        """Begin the next batch, if one is due; called at the end of each step."""
        if self.is_under_way or self._is_looking:
            return
        if self._held:
            self._try_held(decision.now_ms)
        if not self._waiting:
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
        sequence = self.box.next_sequence
        letters: list[Letter] = []
        for offset, cell in self._next_records():
            cause = (cell.cause or Cause("rejected"))._replace(sequence=sequence)
            self.book.put(offset, offset + 1, cell._replace(cause=cause))
            letters.append(Letter(offset, cell.tries, cause, offset not in self._bodiless, cell.until_ms))
            sequence = sequence_after(sequence, 1)
        if letters:
            box = replace(self.box, next_sequence=sequence)
            self._note(box, decision)
            self._send(letters, box, decision)

    def _topic(self) -> str:
        return self.policy.dead_letter_topic or UNDELIVERABLE_TOPIC

    def _is_own(self, cell: Cell) -> bool:
        return cell.state == ARCHIVING and (cell.cause is None or cell.cause.reason != POSTPONED)

    def _note(self, box: LetterBox, decision: QueueDecision) -> None:
        """Have a box stored."""
        self.box = decision.letter_box = box

    def box_found(self, event: LetterBoxFound, decision: QueueDecision) -> None:
        """Note where letters go. Without a topic they wait, or are dropped if it is missing and the policy says so."""
        self._is_looking = False
        if event.box is not None:
            decision.require(event.box.topic == event.topic, "dead letters go where they are meant to go")
            self._note(event.box, decision)
            self._release()
        elif event.is_missing and self.policy.drops_undeliverable:
            self._release()
            decision.count("dead_letters_dropped", self.count)
            for first, end in self._waiting:
                self.book.put(first, end, DEAD)
            self._waiting.clear()
            self._bodiless.clear()
            decision.wakes = True
        else:
            decision.count("dead_letter_failures")
            self._retry_at_ms = decision.now_ms + RETRY_MS

    def stored(self, event: LettersStored, decision: QueueDecision) -> None:
        """Finish the records of the batch under way."""
        letters = self._lane.sent(event.sequence)
        if letters is None:
            return
        self._lane.stored(event.sequence)
        self._lane.forget_stored()
        for letter in letters:
            self.book.put(letter.offset, letter.offset + 1, DEAD)
        decision.letters_finished += len(letters)
        decision.wakes = True
        if not self.is_later:
            decision.count("dead_letters", len(letters))
            decision.count("dead_letters_without_body", event.without_body)
        sent = {letter.offset for letter in letters}
        self._bodiless -= sent
        if self._tried in sent:
            self._release()
        self._batch_max = min(LETTERS_MAX, 2 * self._batch_max)

    def refused(self, event: LettersRefused, decision: QueueDecision) -> None:
        """Take the batch under way back: none of its letters is in the topic, or the topic was replaced."""
        letters = self._lane.sent(event.sequence)
        if letters is None:
            return
        self._lane.take_back()
        elsewhere = {*event.finished, *event.undeliverable}
        for offset in elsewhere:
            self.book.put(offset, offset + 1, DEAD)
        decision.wakes |= bool(elsewhere)
        decision.count("dead_letters_in_circles", len(event.finished))
        decision.count("dead_letters_undeliverable", len(event.undeliverable))
        remain = [letter for letter in letters if letter.offset not in elsewhere]
        for letter in remain:
            cause = letter.cause._replace(sequence=-1)
            cell = Cell(ARCHIVING, letter.tries, until_ms=letter.until_ms, cause=cause)
            self.book.put(letter.offset, letter.offset + 1, cell)
        large = frozenset(event.too_large)
        back = [letter.offset for letter in remain if letter.offset not in large]
        self._waiting.extendleft((offset, offset + 1) for offset in reversed(back))
        for offset in event.too_large:
            self._too_large(offset, decision)
        self._bodiless -= elsewhere
        if self._tried in elsewhere:
            self._tried = None
        if event.is_replaced:
            self.box = None
            return
        # The letters are certainly not in the topic, so their sequences can be used again.
        if event.fits:
            self._batch_max = event.fits
        if self.box is not None:
            self._note(replace(self.box, next_sequence=event.sequence), decision)

    def _too_large(self, offset: int, decision: QueueDecision) -> None:
        """Hold a letter that its topic does not take even alone; or drop its body, if the policy says so."""
        if self._tried == offset:
            self._tried = None
        elif offset not in self._bodiless:
            decision.count("dead_letters_too_large")
        if not self.policy.drops_undeliverable:
            if not self._held:
                self._held_until_ms = decision.now_ms + HELD_MS
            self._held.append(offset)
        elif offset in self._bodiless:  # too large even without its body
            self._bodiless.discard(offset)
            self.book.put(offset, offset + 1, DEAD)
            decision.count("dead_letters_dropped")
            decision.wakes = True
        else:
            self._bodiless.add(offset)
            self._waiting.appendleft((offset, offset + 1))

    def _try_held(self, now_ms: int) -> None:
        """Try a held letter again, if it is time; all of them, if the policy now allows to drop their bodies."""
        if self.policy.drops_undeliverable:
            self._bodiless.update(self._held)
            self._release()
        elif self._retry_at_ms is None and now_ms >= self._held_until_ms:
            self._held_until_ms = now_ms + HELD_MS
            self._tried = self._held.popleft()
            self._waiting.appendleft((self._tried, self._tried + 1))

    def _release(self) -> None:
        """Put all held letters back among those that wait."""
        self._waiting.extend((offset, offset + 1) for offset in self._held)
        self._held.clear()
        self._tried = None

    def _next_records(self) -> list[tuple[int, Cell]]:
        found: list[tuple[int, Cell]] = []
        while self._waiting and len(found) < self._batch_max:
            first, end = self._waiting.popleft()
            stop = min(end, first + self._batch_max - len(found))
            found += [(offset, self.book.at(offset)) for offset in range(first, stop)]
            if stop < end:
                self._waiting.appendleft((stop, end))
        return [(offset, cell) for offset, cell in found if self._is_own(cell)]

    def _send(
        self, letters: Sequence[Letter], box: LetterBox, decision: QueueDecision, *, is_again: bool = False
    ) -> None:
        self._lane.next_sequence = letters[0].cause.sequence
        self._lane.add(tuple(letters), len(letters))
        for batch in self._lane.sendable(decision.now_ms):
            decision.after_sync.append(
                SendLetters(
                    cause=decision.cause,
                    box=box,
                    sequence=batch[0].cause.sequence,
                    letters=batch,
                    is_later=self.is_later,
                    is_again=is_again,
                )
            )


class Copies(DeadLetters):
    """Which records wait for their copy, and which copies are under way.

    A record whose retry is too late for it to wait in its partition has a copy in ``__scheduled``. Copies are sent as
    letters are: the record is ARCHIVING until ``__scheduled`` has acknowledged its copy.
    """

    is_later = True

    def __init__(self, book: RecordBook, policy: QueuePolicy, box: LetterBox | None, letters: DeadLetters) -> None:
        """Begin with what was stored; records that cannot be copied go to ``letters``."""
        super().__init__(book, policy, box)
        self.letters = letters

    def _topic(self) -> str:
        return SCHEDULED_TOPIC

    def _is_own(self, cell: Cell) -> bool:
        return cell.state == ARCHIVING and cell.cause is not None and cell.cause.reason == POSTPONED

    def _note(self, box: LetterBox, decision: QueueDecision) -> None:
        self.box = decision.copy_box = box

    def box_found(self, event: LetterBoxFound, decision: QueueDecision) -> None:
        """Note where copies go; while that is nowhere, they wait."""
        self._is_looking = False
        if event.box is not None:
            self._note(event.box, decision)
        else:
            decision.count("postpone_failures")
            self._retry_at_ms = decision.now_ms + RETRY_MS

    def stored(self, event: LettersStored, decision: QueueDecision) -> None:
        """Finish the records of the batch under way."""
        before = decision.letters_finished
        super().stored(event, decision)
        decision.count("postponed", decision.letters_finished - before)

    def refused(self, event: LettersRefused, decision: QueueDecision) -> None:
        """Take the batch under way back; records that cannot be copied become dead letters."""
        super().refused(event, decision)
        for offset, why in event.lost:
            cell = self.book.at(offset)
            if self._is_own(cell):
                cause = Cause(UNDELIVERABLE, LATER.format(why))
                self.book.put(offset, offset + 1, Cell(ARCHIVING, cell.tries, cause=cause))
                self.letters.add(offset, offset + 1)
                decision.count("postpone_failures")
