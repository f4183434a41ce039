"""A map from consecutive offsets to cells, kept as sorted ranges: equal neighbours are one. Pure.

A queue that was worked off in order is a single range, however long; a million acknowledged records cost as much as
one. Look-ups are binary searches; a change moves the ranges behind it, which are a few thousand at most.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

CellT = TypeVar("CellT")


class RangeMap(Generic[CellT]):
    """Cells of the offsets from ``start`` up to, not including, ``end``.

    Invariants: ``_firsts`` rises strictly and begins with ``start`` unless the map is empty; neighbours differ;
    ``len(_firsts) == len(_cells)``; the map is empty exactly if ``start == end``.
    """

    __slots__ = ("_cells", "_firsts", "end", "start")

    def __init__(self, start: int) -> None:
        """Begin empty at an offset."""
        self.start = start
        self.end = start
        self._firsts: list[int] = []
        self._cells: list[CellT] = []

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, CellT]]:
        """Yield each range as (first, end, cell)."""
        return iter(self.pieces(self.start, self.end))

    @property
    def first_cell(self) -> CellT:
        """The cell of ``start``; the map may not be empty."""
        return self._cells[0]

    @property
    def first_end(self) -> int:
        """The end of the first range; the map may not be empty."""
        return self._firsts[1] if len(self._firsts) > 1 else self.end

    def at(self, offset: int) -> CellT | None:
        """Return the cell of an offset; None outside the map."""
        if not self.start <= offset < self.end:
            return None
        return self._cells[bisect_right(self._firsts, offset) - 1]

    def end_at(self, offset: int) -> int:
        """Return the end of the range that has an offset of the map."""
        place = bisect_right(self._firsts, offset)
        return self._firsts[place] if place < len(self._firsts) else self.end

    def pieces(self, first: int, end: int) -> list[tuple[int, int, CellT]]:
        """Return the ranges within [first, end), cut to it."""
        first, end = max(first, self.start), min(end, self.end)
        if first >= end:
            return []
        firsts, cells = self._firsts, self._cells
        place = bisect_right(firsts, first) - 1
        stop = bisect_left(firsts, end)
        found = [
            (firsts[number], firsts[number + 1] if number + 1 < len(firsts) else self.end, cells[number])
            for number in range(place, stop)
        ]
        found[0] = (first, found[0][1], found[0][2])
        found[-1] = (found[-1][0], min(end, found[-1][1]), found[-1][2])
        return found

    def put(self, first: int, end: int, cell: CellT) -> None:
        """Set the cell of [first, end), which has to begin in the map or at its end. An empty range changes nothing."""
        if first >= end:
            return
        if not self.start <= first <= self.end:
            raise ValueError(f"[{first}, {end}) does not join the map [{self.start}, {self.end})")
        firsts, cells = self._firsts, self._cells
        place = bisect_right(firsts, first) - 1  # the range that holds `first`, or the last one
        stop = bisect_left(firsts, end)  # the first range that begins at or behind `end`
        new: list[tuple[int, CellT]] = [(first, cell)]
        if place >= 0 and firsts[place] < first:
            new.insert(0, (firsts[place], cells[place]))
        elif place < 0:
            place = 0
        behind = firsts[stop] if stop < len(firsts) else self.end
        if end < behind:
            new.append((end, cells[stop - 1]))
        if place > 0:  # equal neighbours become one
            place -= 1
            new.insert(0, (firsts[place], cells[place]))
        if stop < len(firsts):
            new.append((firsts[stop], cells[stop]))
            stop += 1
        merged = [new[0]]
        for row in new[1:]:
            if row[1] != merged[-1][1]:
                merged.append(row)
        firsts[place:stop] = [row[0] for row in merged]
        cells[place:stop] = [row[1] for row in merged]
        self.end = max(self.end, end)

    def cut(self, start: int) -> None:
        """Forget everything below an offset; if that is beyond the end, the map is empty and begins there."""
        if start <= self.start:
            return
        if start >= self.end:
            self._firsts, self._cells = [], []
            self.end = start
        else:
            place = bisect_right(self._firsts, start) - 1
            del self._firsts[:place], self._cells[:place]
            self._firsts[0] = start
        self.start = start

    def validate(self) -> None:
        """Raise ValueError unless the invariants hold."""
        firsts = self._firsts
        holds = len(firsts) == len(self._cells) and (not firsts) == (self.start == self.end)
        holds &= not firsts or (firsts[0] == self.start and firsts[-1] < self.end)
        holds &= all(firsts[n] < firsts[n + 1] for n in range(len(firsts) - 1))
        holds &= all(self._cells[n] != self._cells[n + 1] for n in range(len(firsts) - 1))
        if not holds:
            raise ValueError(f"broken ranges: {self.start} {self.end} {list(zip(firsts, self._cells, strict=False))}")
