"""Copies what is needed of the oldest log to its end, so that the log can begin behind it. Owned by the machine. Pure.

The oldest part of the log, an *area*, is cleared in two steps. The survey finds which of its records are needed, in
memory and in the runs, one run at a time; meanwhile the machine reports which records leave or are taken. Then rows are
written: first copies of the area's runs, then of records that were copied before, then of records at their first
places. The last row states that everything below the area's end is copied. Only rows in the log count, so that a new
leader goes on from there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from raylog.core.scheduling.keys import TOMBSTONE, offset_of
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rows import Relocated, RunWritten, row_of_run
from raylog.core.scheduling.runs import ReadBlock, is_tombstone
from raylog.core.scheduling.space import Space

_ALL_KEYS: Final = 1 << 200


class Mover:
    """The area that is being cleared, and how far that is."""

    def __init__(
        self, pending: Pending, space: Space, read: ReadBlock, needed: Callable[[], Iterable[int]], row_records: int
    ) -> None:
        """Begin without an area.

        ``needed`` returns the first offsets of needed records that are in no run; ``row_records``: most records of a
        row.
        """
        self._pending = pending
        self._space = space
        self._read = read
        self._needed = needed
        self._row_records = row_records
        self.end: int | None = None
        """End of the area; None = there is no area."""
        self._to_survey: list[int] = []
        self._found: set[int] = set()
        self._sealed: set[int] = set()
        self._cut: set[int] = set()
        self._left: set[int] = set()
        self._needed_here: list[int] | None = None
        """First offsets of the area's needed records, ascending; None = the survey is not over."""

    # ------------------------------------------------------------ what the machine reports

    def left(self, offset: int) -> None:
        """Note that a record is not needed any more."""
        if self.end is not None:
            self._left.add(offset)

    def kept(self, keys: Iterable[int]) -> None:
        """Note that records are needed: the survey of the runs may no longer find them."""
        if self._needed_here is None and self.end is not None:
            self._found.update(offset for key in keys if self._is_here(offset := offset_of(key)))

    # ------------------------------------------------------------ steps

    def begin(self, end: int) -> None:
        """Begin to clear the log below an offset."""
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
        """Return whether a record, given by its first offset, stands in the area."""
        return self.end is not None and self._space.place_of(offset) < self.end

    def step(self) -> tuple[RunWritten | Relocated, bytes] | None:
        """Survey one run and return None, or return the next row and its value.

        If ``end`` is None after it, the area is cleared.
        """
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
            data = self._read(run, 0, run.size)
            return row_of_run(run.facts, data, run.offset), data
        if places := self._space.places.below(end):
            return self._of_copies(self._space.places.neighbours(places)), b""
        if self._space.native_from < end:
            return self._of_records(end), b""
        self.end, self._needed_here = None, None
        self._left = set()
        return None

    def _survey(self, offset: int) -> None:
        run = self._pending.runs.get(offset)
        if run is None:
            return  # exhausted meanwhile; the machine reported what was taken from it
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
        """Return one row with the needed records of the first of these rows with copies, of as many as fit in it."""
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
    """Return the row with only its first ``count`` records, if the others do not fit into a batch."""
    if count >= len(row.offsets):
        return row
    return Relocated(row.offsets[:count], row.offsets[count], row.replaces)
