"""The records of one queue: their states, how many are in each, and which may be handed out next. Pure.

The book covers the offsets from ``start``, the first one that is not finished (Kafka's share-partition start offset),
up to ``end``, the offset after the last one that was handed out. Records from ``end`` on are fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush

from raylog.core.queues.ranges import RangeMap
from raylog.core.queues.states import (
    ACQUIRED,
    AVAILABLE,
    DEAD,
    FRESH,
    TERMINAL,
    TRANSITIONS,
    UNFINISHED,
    WAITING,
    Cell,
    WireRange,
    from_wire,
    to_wire,
)

Piece = tuple[int, int, Cell]


class RecordBook:
    """States by offset.

    Invariants: ``start`` never falls, except by a reset; the first record of the book is not finished, unless the book
    is empty; ``counts`` has the number of records in each state; every available record of the book that was handed
    out before lies in a range of the heap ``_again``.
    """

    def __init__(self, start: int, *, by_key: bool = False) -> None:
        """Begin at an offset with nothing handed out. With ``by_key``, key queues know what is next."""
        self._by_key = by_key
        self._map: RangeMap[Cell] = RangeMap(start)
        self.counts: Counter[int] = Counter()
        self.reason_bytes = 0
        """Bytes of the messages of all ARCHIVING records."""
        self._again: list[tuple[int, int]] = []
        self._waits: list[tuple[int, int, int]] = []
        self._changed: list[tuple[int, int]] = []
        self._start_changed = False
        self.was_reset = False
        """Whether a reset is not stored yet."""

    @property
    def start(self) -> int:
        """The first offset that is not finished."""
        return self._map.start

    @property
    def end(self) -> int:
        """The first offset that was never handed out."""
        return self._map.end

    @property
    def unfinished(self) -> int:
        """Number of records in the book that are not finished."""
        return sum(self.counts[state] for state in UNFINISHED)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._map)

    def pieces(self, first: int, end: int) -> list[Piece]:
        """Return the states in [first, end), as far as the book goes."""
        return self._map.pieces(first, end)

    def first_in(self, state: int, first: int) -> int | None:
        """Return the lowest offset in a state, from ``first`` on; None = there is none."""
        if not self.counts[state]:
            return None
        first = max(first, self.start)
        return next((max(low, first) for low, _, cell in self.pieces(first, self.end) if cell.state == state), None)

    def at(self, offset: int) -> Cell:
        """Return the state of an offset: finished before the book's start, fresh from its end on."""
        if offset < self._map.start:
            return DEAD
        return self._map.at(offset) or FRESH

    def first_unfinished(self, offset: int) -> int:
        """Return the first offset from this one on that is not finished; no offset from ``end`` on is finished."""
        while (cell := self._map.at(offset)) is not None and cell.state in TERMINAL:
            offset = self._map.end_at(offset)
        return offset

    def is_available(self, offset: int) -> bool:
        """Whether a record may be handed out."""
        return self.at(offset).state == AVAILABLE

    # ------------------------------------------------------------ changes

    def put(self, first: int, end: int, cell: Cell, *, is_stored: bool = True) -> None:
        """Change the states of [first, end); with ``is_stored``, the change is to be stored.

        Raises ValueError for a transition that is not in ``TRANSITIONS``.
        """
        for low, high, before in self._map.pieces(first, end):
            if cell.state not in TRANSITIONS[before.state]:
                raise ValueError(f"{before} cannot become {cell} in [{low}, {high})")
            self.counts[before.state] -= high - low
            self.reason_bytes -= (high - low) * _reason_bytes(before)
        if first > self._map.end:  # with order by key, a later record may be handed out first
            self.fill(self._map.end, first, FRESH)
        self._map.put(first, end, cell)
        self.counts[cell.state] += end - first
        self.reason_bytes += (end - first) * _reason_bytes(cell)
        if cell.state == AVAILABLE and not self._by_key:
            heappush(self._again, (first, end))
        elif cell.state == WAITING:
            heappush(self._waits, (cell.until_ms, first, end))
        if is_stored:
            self._changed.append((first, end))

    def trim(self) -> int:
        """Move the start past finished records; return the new start."""
        before = self._map.start
        while len(self._map) and self._map.first_cell.state in TERMINAL:
            end = self._map.first_end
            self.counts[self._map.first_cell.state] -= end - self._map.start
            self._map.cut(end)
        self._start_changed |= self._map.start != before
        return self._map.start

    def reset(self, start: int) -> None:
        """Begin again at an offset, in either direction."""
        self._map = RangeMap(start)
        self.counts = Counter()
        self.reason_bytes = 0
        self._again, self._waits, self._changed = [], [], []
        self._start_changed = self.was_reset = True

    # ------------------------------------------------------------ what is next

    def next_again(self) -> int | None:
        """Return the lowest record of the book that is available; None = there is none."""
        while self._again:
            first, end = self._again[0]
            for low, _, cell in self._map.pieces(first, end):
                if cell.state == AVAILABLE:
                    if low > first:
                        heappop(self._again)
                        heappush(self._again, (low, end))
                    return low
            heappop(self._again)
        return None

    def available(self, first: int, end: int) -> list[Piece]:
        """Return the available ranges of the book within [first, end)."""
        return [piece for piece in self._map.pieces(first, end) if piece[2].state == AVAILABLE]

    def take_waits(self, now_ms: int) -> list[Piece]:
        """Return the waiting records whose time has come, once: the caller changes their state."""
        found: list[Piece] = []
        while self._waits and self._waits[0][0] <= now_ms:
            until_ms, first, end = heappop(self._waits)
            found += [
                piece
                for piece in self._map.pieces(first, end)
                if piece[2].state == WAITING and piece[2].until_ms == until_ms
            ]
        return found

    def next_wait_ms(self) -> int | None:
        """Return when the next waiting record may be available; None = none waits."""
        return self._waits[0][0] if self._waits else None

    def held_by(self, member: str) -> list[Piece]:
        """Return the ranges that a member has locked."""
        return [piece for piece in self._map if piece[2].state == ACQUIRED and piece[2].member == member]

    # ------------------------------------------------------------ the log

    def take_changes(self, wall_ahead_ms: int) -> list[WireRange] | None:
        """Return the changed ranges to store, as they are now; None = nothing changed."""
        if not self._changed and not self._start_changed:
            return None
        changed, self._changed, self._start_changed = self._changed, [], False
        rows: list[WireRange] = []
        for first, end in _joined(changed):
            rows += [to_wire(*piece, wall_ahead_ms) for piece in self._map.pieces(first, end)]
        return rows

    def load(self, rows: Iterable[WireRange], wall_ahead_ms: int) -> None:
        """Load the stored ranges, in the order of their offsets; records between them are available."""
        for row in rows:
            first, end, cell = from_wire(row, wall_ahead_ms)
            if end <= self._map.start:
                continue
            first = max(first, self._map.start)
            if first > self._map.end:
                self.fill(self._map.end, first, FRESH)
            self.fill(first, end, cell)

    def fill(self, first: int, end: int, cell: Cell) -> None:
        """Set the states of offsets that are not counted yet; they need not be stored."""
        self._map.put(first, end, cell)
        self.counts[cell.state] += end - first
        self.reason_bytes += (end - first) * _reason_bytes(cell)
        if cell.state == AVAILABLE and not self._by_key:
            heappush(self._again, (first, end))
        elif cell.state == WAITING:
            heappush(self._waits, (cell.until_ms, first, end))

    def inherit(self, offset: int, tries: int) -> None:
        """Note that an available record is a copy, and was handed out ``tries`` times before it was copied here."""
        cell = self.at(offset)
        if offset < self._map.start or cell.state != AVAILABLE or cell.tries >= tries:
            return
        if offset > self._map.end:
            self.fill(self._map.end, offset, FRESH)
        elif offset < self._map.end:
            self.counts[AVAILABLE] -= 1
        self.fill(offset, offset + 1, Cell(AVAILABLE, tries))

    def validate(self) -> None:
        """Raise ValueError unless the invariants hold."""
        self._map.validate()
        counted: Counter[int] = Counter()
        again: set[int] = set()
        for first, end in self._again:
            again.update(range(first, end))
        for first, end, cell in self._map:
            counted[cell.state] += end - first
            if cell.state == AVAILABLE and not self._by_key and not again.issuperset(range(first, end)):
                raise ValueError(f"[{first}, {end}) is available and would not be found")
        reasons = sum((end - first) * _reason_bytes(cell) for first, end, cell in self._map)
        if reasons != self.reason_bytes:
            raise ValueError(f"reasons have {reasons} bytes, noted {self.reason_bytes}")
        if +counted != +self.counts:
            raise ValueError(f"counted {counted}, noted {self.counts}")


def _reason_bytes(cell: Cell) -> int:
    return len(cell.cause.message.encode()) if cell.cause is not None else 0


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order; those that overlap or touch are merged."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found
