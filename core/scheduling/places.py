"""Where the copies of records are in the log. Owned by the machine. Pure.

A record keeps its first offset as its identity: in keys, in runs, in the handles of users. Of each row with copies, the
range of its records' first offsets is known. Ranges do not overlap, so one search finds the row that may have a record;
the row itself lists its records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from raylog.base.invariants import require


class Places:
    """The rows with copies, by the first offsets of their records.

    Invariant: ``first[i] <= last[i] < first[i + 1]``.
    """

    def __init__(self, rows: Iterable[tuple[int, int, int]] = ()) -> None:
        """``rows``: first and last offset of each range, and the row's own offset."""
        ordered = sorted(rows)
        self._firsts = [first for first, _, _ in ordered]
        self._lasts = [last for _, last, _ in ordered]
        self._rows = [row for _, _, row in ordered]

    def __len__(self) -> int:
        """Number of rows with copies."""
        return len(self._rows)

    def row_of(self, offset: int) -> int | None:
        """Return the offset of the row that may have the record with this first offset; None = it was not copied."""
        index = bisect_right(self._firsts, offset) - 1
        return self._rows[index] if index >= 0 and offset <= self._lasts[index] else None

    def add(self, first: int, last: int, row: int) -> None:
        """Note a row with copies of first offsets from ``first`` to ``last``."""
        index = bisect_left(self._firsts, first)
        require(index == 0 or self._lasts[index - 1] < first, "a record stands in one row")
        require(index == len(self._firsts) or last < self._firsts[index], "a record stands in one row")
        self._firsts.insert(index, first)
        self._lasts.insert(index, last)
        self._rows.insert(index, row)

    def treated(self, rows: Iterable[int], upto: int) -> None:
        """Forget what rows, given by their offsets, have below a first offset: it was copied again."""
        for row in rows:
            index = self._rows.index(row)
            if self._lasts[index] < upto:
                del self._firsts[index], self._lasts[index], self._rows[index]
            else:
                self._firsts[index] = max(self._firsts[index], upto)

    def below(self, end: int) -> list[tuple[int, int, int]]:
        """Return the rows that stand below an offset of the log, ordered by their records' first offsets."""
        return [row for row in self.state() if row[2] < end]

    def neighbours(self, rows: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Return the leading ``rows`` that have no other row's range between theirs."""
        index = bisect_left(self._firsts, rows[0][0])
        count = 0
        while count < len(rows) and index + count < len(self._rows) and rows[count][2] == self._rows[index + count]:
            count += 1
        return list(rows[:count])

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """Return what a checkpoint keeps."""
        return tuple(zip(self._firsts, self._lasts, self._rows, strict=True))

    @property
    def lowest(self) -> int | None:
        """The lowest offset of a row with copies; None = there is none."""
        return min(self._rows, default=None)
