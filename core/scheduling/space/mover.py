"""Appends what is needed of the oldest log once more, so that the log can begin behind it. Owned by the machine. Pure.

An area is treated in three steps. First a survey: which of its records are needed is found in memory and in the runs,
one run at a time, while the machine reports what leaves and is taken meanwhile. Then rows are written: runs as they
are, what was appended once more before, and the records that are at their first places. The last row says that all
below the area's end is treated. All of it is decided by rows of the log, so that a new leader goes on from there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from raylog.core.scheduling.keys import TOMBSTONE, offset_of
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rows import Relocated, RunWritten
from raylog.core.scheduling.runs import ReadBlock, is_tombstone
from raylog.core.scheduling.space.stretches import Space

_ALL_KEYS: Final = 1 << 200


class Mover:
    """What is being moved."""

    def __init__(
        self, pending: Pending, space: Space, read: ReadBlock, needed: Callable[[], Iterable[int]], row_records: int
    ) -> None:
        """``needed`` returns the records that are needed and in no run; ``row_records``: the most of one row."""
        self._pending = pending
        self._space = space
        self._read = read
        self._needed = needed
        self._row_records = row_records
        self.end: int | None = None
        """End of the area; None = nothing is treated."""
        self._to_survey: list[int] = []
        self._found: set[int] = set()
        self._sealed: set[int] = set()
        self._cut: set[int] = set()
        self._left: set[int] = set()
        self._needed_here: list[int] | None = None
        """The records of the area that are needed, by their first offsets; None = the survey is not over."""

    # ------------------------------------------------------------ what the machine reports

    def left(self, offset: int) -> None:
        """A record is not needed any more."""
        if self.end is not None:
            self._left.add(offset)

    def kept(self, keys: Iterable[int]) -> None:
        """Records are needed, and may be missing in the runs from now on."""
        if self._needed_here is None and self.end is not None:
            self._found.update(offset for key in keys if self._is_here(offset := offset_of(key)))

    # ------------------------------------------------------------ steps

    def begin(self, end: int) -> None:
        """Treat the log below an offset."""
        self.end = end
        self._left, self._sealed, self._cut, self._needed_here = set(), set(), set(), None
        self._found = {offset for offset in self._needed() if self._is_here(offset)}
        places = self._space.places.below(end)
        lowest = min([self._space.native_from, *(first for first, _, _ in places)])
        self._to_survey = [
            offset
            for offset, run in self._pending.runs.items()
            if run.facts.lowest_offset < end and run.facts.highest_offset >= lowest
        ]

    def _is_here(self, offset: int) -> bool:
        """Whether a record stands in the area."""
        return self.end is not None and self._space.place_of(offset) < self.end

    def step(self) -> RunWritten | Relocated | None:
        """Do one thing: survey a run, or return the next row; with None and ``end`` None, the area is treated."""
        end = self.end
        if end is None:
            return None
        if self._to_survey:
            self._survey(self._to_survey.pop())
            return None
        if self._needed_here is None:
            self._found.update(offset_of(key) for key in self._sealed - self._cut)
            self._needed_here = sorted(self._found)
            self._found, self._sealed, self._cut = set(), set(), set()
        run = next((run for run in self._pending.runs.values() if run.offset < end), None)
        if run is not None:
            return RunWritten(run.facts, self._read(run, 0, run.size), run.offset)
        if places := self._space.places.below(end):
            return self._of_copies(self._space.places.neighbours(places))
        if self._space.native_from < end:
            return self._of_records(end)
        self.end, self._needed_here = None, None
        self._left = set()
        return None

    def _survey(self, offset: int) -> None:
        run = self._pending.runs.get(offset)
        if run is None:
            return  # it was exhausted meanwhile, and what was taken of it is reported
        for key in run.keys_between(0, _ALL_KEYS, self._read):
            if is_tombstone(key):
                if self._is_here(offset_of(key)):
                    self._cut.add(key ^ TOMBSTONE)
            elif key > self._pending.frontier and key not in self._pending.cut and self._is_here(offset_of(key)):
                self._sealed.add(key)

    def _between(self, low: int, high: int) -> list[int]:
        there = self._needed_here or []
        found = there[bisect_left(there, low) : bisect_left(there, high)]
        return [offset for offset in found if offset not in self._left]

    def _of_copies(self, places: list[tuple[int, int, int]]) -> Relocated:
        """Return a row with what is needed of the first rows with copies; several, as far as they have few."""
        offsets: list[int] = []
        count = 0
        for first, last, _ in places:
            more = self._between(first, last + 1)
            if count and len(offsets) + len(more) > self._row_records:
                break
            offsets += more
            count += 1
        return Relocated(tuple(offsets), places[count - 1][1] + 1, tuple(row for _, _, row in places[:count]))

    def _of_records(self, end: int) -> Relocated:
        offsets = self._between(self._space.native_from, end)
        upto = end if len(offsets) <= self._row_records else offsets[self._row_records]
        return Relocated(tuple(offsets[: self._row_records]), upto)


def shortened(row: Relocated, count: int) -> Relocated:
    """Return the row with its first records alone: the others do not fit."""
    if count >= len(row.offsets):
        return row
    return Relocated(row.offsets[:count], row.offsets[count], row.replaces)
