"""One step's decision of a queue. Made and filled by ``machine.py``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from raylog.base.errors import RaylogError
from raylog.core.decision import Decision, Refuse, Reply, RequestId, Result, Story
from raylog.core.outbox import Outbox
from raylog.core.queues.book import RecordBook
from raylog.core.queues.events import Effect, EndFetches, NoteStored, StoreChange, Wake
from raylog.core.queues.records import LetterBox, QueueChange
from raylog.protocol.queues import QueueShorterLock


class QueueDecision(Decision[Effect]):
    """What changed beside the book, and the answers, which wait until everything is stored."""

    __slots__ = (
        "_counters",
        "copy_box",
        "first_counts",
        "letter_box",
        "letters_finished",
        "marks",
        "proves",
        "settings",
        "shorter",
        "silent",
        "wakes",
    )

    def __init__(self, cause: str, now_ms: int, counters: Counter[str], story: Story) -> None:
        """``counters`` are the machine's."""
        super().__init__(cause, now_ms, story)
        self._counters = counters
        self.settings: Mapping[str, str] | None = None
        self.letter_box: LetterBox | None = None
        self.copy_box: LetterBox | None = None
        self.letters_finished = 0
        """Records that are finished because their dead letter, or their copy, is stored."""
        self.shorter: list[QueueShorterLock] = []
        """Locks that were renewed for less than was requested."""
        self.silent: dict[str, None] = {}
        """Members whose locks ran out, in order (a dict as an ordered set)."""
        self.wakes = False
        """Whether records may be handed out now that could not before."""
        self.first_counts: list[tuple[int, int]] = []
        """[first, end) of records whose first hand-out is over: the next hand-out waits until that is stored."""
        self.marks = False
        """Whether the machine has to be notified when this step is stored (:class:`NoteStored`)."""
        self.proves = False
        """Whether a change is stored even if it is empty: it proves that no other leader has loaded the queue."""

    def count(self, name: str, number: int = 1) -> None:
        """Count what happened."""
        self._counters[name] += number

    def reply(self, request: RequestId, result: Result) -> None:
        """Answer once everything decided so far is stored."""
        self.after_sync.append(Reply(cause=self.cause, request=request, result=result))

    def refuse(self, request: RequestId, error: RaylogError) -> None:
        """Refuse at once: the sender will try again, or the error does not depend on the queue's state."""
        self.now.append(Refuse(cause=self.cause, request=request, error=error))

    def refuse_proved(self, request: RequestId, error: RaylogError) -> None:
        """Refuse because of the queue's state, once a change is stored: a leader that was fenced cannot store one."""
        self.proves = True
        self.after_sync.append(Refuse(cause=self.cause, request=request, error=error))

    def finish(self, book: RecordBook, wall_ahead_ms: int, number: int) -> Outbox[Effect]:
        """End the step: the change to store is the first effect. ``number``: that of this step."""
        start = book.trim()
        ranges = book.take_changes(wall_ahead_ms)
        boxes = self.letter_box, self.copy_box
        if ranges is not None or self.settings is not None or boxes != (None, None) or self.proves:
            change = QueueChange(start, ranges or (), self.settings, boxes[0], book.was_reset, boxes[1])
            book.was_reset = False
            self.now.insert(0, StoreChange(cause=self.cause, change=change))
        if self.marks:
            self.after_sync.append(NoteStored(cause=self.cause, number=number))
        if self.silent:
            self.now.append(EndFetches(cause=self.cause, members=tuple(self.silent)))
        if self.wakes:
            self.now.append(Wake(cause=self.cause))
        return self
