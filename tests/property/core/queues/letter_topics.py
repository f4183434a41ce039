"""A dead-letter topic, and ``__scheduled``, as a queue's machine sees them: with a limit, and records they refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raylog.core.forwarding.sizes import Room
from raylog.core.queues import events as ev
from raylog.core.queues.records import LetterBox

BATCH = 24
"""Most bytes of one batch that a sender makes by itself."""


def size_of(offset: int) -> int:
    """Return a record's size: from far below each limit to above most of them."""
    return 1 + (offset * 7) % 13


@dataclass
class LetterTopics:
    """Both topics. They know a batch that they have by its producer and first sequence."""

    limit: int = 8
    refuses: set[int] = field(default_factory=set)
    """Offsets whose letters the dead-letter topic never takes, whatever their size."""
    drops: bool = False
    """Whether bodies may be dropped."""
    is_replaced: bool = False
    """Whether the next batch finds another topic there."""
    dead: list[int] = field(default_factory=list)
    aside: list[int] = field(default_factory=list)
    """Letters in ``__undeliverable``."""
    copies: list[int] = field(default_factory=list)
    bodiless: set[int] = field(default_factory=set)
    producers: int = 0
    batches: dict[tuple[bool, int, int], list[int]] = field(default_factory=dict)

    def found(self, effect: ev.FindLetterBox) -> LetterBox:
        """Return where letters or copies go."""
        self.producers += 1
        return LetterBox(effect.topic, "id", 0, self.producers)

    def answer(self, effect: ev.SendLetters) -> tuple[Any, dict[str, Any]]:
        """Take a batch, or not; return the event's kind and fields."""
        offsets = [letter.offset for letter in effect.letters]
        name = (effect.is_later, effect.box.producer_id, effect.sequence)
        if name in self.batches:
            assert self.batches[name] == offsets, "a repeated batch of dead letters differs"
            return ev.LettersStored, {}
        if self.is_replaced:
            self.is_replaced = False
            return ev.LettersRefused, {"is_replaced": True}
        sizes = [size_of(letter.offset) if letter.keeps_body else 0 for letter in effect.letters]
        if not effect.is_again:
            room = Room(BATCH)
            fits = sum(1 for _ in _while(room, sizes))
            if fits < len(sizes):
                return ev.LettersRefused, {"fits": fits}
        refused = self.refuses.intersection(offsets) if not effect.is_later else set()
        if sum(sizes) > self.limit or refused:
            return ev.LettersRefused, self._refused(effect, offsets, is_large=not refused)
        self.batches[name] = offsets
        (self.copies if effect.is_later else self.dead).extend(offsets)
        self.bodiless.update(letter.offset for letter in effect.letters if not letter.keeps_body)
        assert self.drops or not self.bodiless, "a body is dropped that was to be held"
        return ev.LettersStored, {"without_body": sum(not letter.keeps_body for letter in effect.letters)}

    def _refused(self, effect: ev.SendLetters, offsets: list[int], *, is_large: bool) -> dict[str, Any]:
        if len(offsets) > 1:
            return {"fits": len(offsets) // 2}
        if effect.is_later:
            return {"lost": [(offsets[0], "it is too large")]}
        if is_large:
            return {"too_large": offsets}
        self.aside += offsets
        return {"undeliverable": offsets}


def _while(room: Room, sizes: list[int]) -> Any:
    for size in sizes:
        if not room.takes(size):
            return
        yield size
