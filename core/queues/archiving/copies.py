"""Copies of records whose retry is too late for them to wait in their partition: each once in ``__scheduled``. Pure.

Copies are sent as dead letters are: the record is ARCHIVING, the copy's sequence is stored before the copy is sent, and
the record is finished when ``__scheduled`` has acknowledged the copy. A new leader sends the same batch again.
"""

from __future__ import annotations

from typing import Final

from raylog.core.queues.archiving.letters import RETRY_MS, DeadLetters
from raylog.core.queues.book import RecordBook
from raylog.core.queues.decision import QueueDecision
from raylog.core.queues.events import LetterBoxFound, LettersRefused, LettersStored
from raylog.core.queues.policy import QueuePolicy
from raylog.core.queues.records import LetterBox
from raylog.core.queues.states import ARCHIVING, POSTPONED, Cause, Cell
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC

UNDELIVERABLE: Final = "undeliverable"
LATER: Final = "it was to be retried later, and {}"
"""Message of the dead letter of a record that cannot be copied, with the reason."""


class Copies(DeadLetters):
    """Which records wait for their copy, and which copies are under way."""

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
