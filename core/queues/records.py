"""What is stored of queues: the whole state of a queue, and changes to it. Pure.

The leader of a partition sends changes to that of ``__share_state`` (``share_states.py``), which stores them and has
the state of every queue in memory. Offsets, counts and times are whole numbers; times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raylog.core.queues.ranges import RangeMap
from raylog.core.queues.states import AVAILABLE, TERMINAL, WireRange
from raylog.protocol.message import Message
from raylog.protocol.rows import wire_of


class LetterBox(Message, frozen=True):
    """Where the dead letters of a queue go, and the producer id and next sequence with which they go there."""

    topic: str
    topic_id: str
    partition: int
    producer_id: int
    next_sequence: int = 0


class QueueChange(Message, frozen=True):
    """A change to a queue; None = this part does not change.

    ``is_reset``: whether all earlier states of records are void. ``copy_box``: like ``letter_box``, for copies that
    wait in ``__scheduled``.
    """

    start: int
    ranges: Sequence[WireRange]
    settings: Mapping[str, str] | None = None
    letter_box: LetterBox | None = None
    is_reset: bool = False
    copy_box: LetterBox | None = None

    def to_wire(self) -> list[object]:
        """Return the values that are stored and sent; most queues have no copies, and no field for them."""
        fields = wire_of(self)[:COPY_BOX_AT]
        return fields if self.copy_box is None else [*fields, wire_of(self.copy_box)]


class StoredChange(QueueChange, frozen=True):
    """A change as a row has it. ``parts``: how many rows before it have its first ranges. ``partitions``: of the topic,
    in a snapshot."""

    parts: int = 0
    partitions: int = 0

    def to_wire(self) -> list[object]:
        """Return the values that are stored."""
        return wire_of(self) if self.parts or self.partitions else super().to_wire()


COPY_BOX_AT: Final = 5
RANGE_BYTES: Final = 60
"""About the most bytes of a stored range without its message."""
_MESSAGE_AT: Final = 6


def range_bytes(row: WireRange) -> int:
    """Return about the most bytes that a stored range takes."""
    return RANGE_BYTES + (len(str(row[_MESSAGE_AT]).encode()) if len(row) > _MESSAGE_AT else 0)


def pieces_within(ranges: Sequence[WireRange], bytes_max: int) -> list[list[WireRange]]:
    """Return the ranges in pieces of at most ``bytes_max`` bytes; there is always one piece, it may be empty."""
    pieces: list[list[WireRange]] = [[]]
    left = bytes_max
    for row in ranges:
        size = range_bytes(row)
        if size > left and pieces[-1]:
            pieces.append([])
            left = bytes_max
        pieces[-1].append(row)
        left -= size
    return pieces


def joined(changes: Sequence[QueueChange]) -> QueueChange:
    """Return one change that has the effect of several changes in order."""
    settings = next((change.settings for change in reversed(changes) if change.settings is not None), None)
    box = next((change.letter_box for change in reversed(changes) if change.letter_box is not None), None)
    copy_box = next((change.copy_box for change in reversed(changes) if change.copy_box is not None), None)
    resets = [number for number, change in enumerate(changes) if change.is_reset]
    known = changes[resets[-1] :] if resets else changes
    ranges = [row for change in known for row in change.ranges]
    return QueueChange(changes[-1].start, ranges, settings, box, bool(resets), copy_box)


_FRESH: Final = (AVAILABLE, 0)


@dataclass(slots=True)
class QueueState:
    """Everything that is stored of one queue."""

    topic: str
    leader_epoch: int = -1
    state_epoch: int = 0
    """Rises whenever a leader loads the queue; changes with an earlier state epoch are fenced (KIP-932)."""
    version: int = 0
    """Number of the last change in this state epoch: each is applied once, in order."""
    start: int = -1
    """-1 = no leader has chosen where the queue begins."""
    settings: Mapping[str, str] = field(default_factory=dict)
    letter_box: LetterBox | None = None
    copy_box: LetterBox | None = None
    partitions: int = 1
    """How many partitions the topic had when the group began to work on this one."""
    _cells: RangeMap[tuple[Any, ...]] = field(default_factory=lambda: RangeMap(0))

    def apply(self, change: QueueChange) -> None:
        """Apply a change: the only mutator of the records' states."""
        if change.is_reset or self.start < 0:
            self._cells = RangeMap(change.start)
        self.start = change.start
        for first, end, *cell in change.ranges:
            if first > self._cells.end:
                self._cells.put(self._cells.end, first, _FRESH)
            if end > self._cells.start:
                self._cells.put(max(first, self._cells.start), end, tuple(cell))
        self._cells.cut(change.start)
        if change.settings is not None:
            self.settings = change.settings
        if change.letter_box is not None:
            self.letter_box = change.letter_box
        if change.copy_box is not None:
            self.copy_box = change.copy_box

    def snapshot(self) -> QueueChange:
        """Return the whole state as one change."""
        ranges = [(first, end, *cell) for first, end, cell in self._cells if cell != _FRESH]
        return QueueChange(self.start, ranges, self.settings, self.letter_box, True, self.copy_box)

    def unfinished(self) -> int:
        """Return how many records are not finished, up to the last stored range."""
        return sum(end - first for first, end, cell in self._cells if cell[0] not in TERMINAL)
