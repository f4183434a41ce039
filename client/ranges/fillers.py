"""Fills the columns of an Arrow record batch with the batches of the log, one by one. Used by arrow.py. Pure.

A batch is copied right after it was read, while its bytes are in the processor's cache, and its memory can be used for
the next one (docs/adr/0055-ranges-into-arrow.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raylog.client.ranges import strings
from raylog.client.ranges.buffers import integers, room_for
from raylog.client.ranges.pieces import Piece
from raylog.storage.batch.records import Grid


class Filler(Protocol):
    """Fills one column."""

    def add(self, piece: Piece) -> None:
        """Append the records of one batch of the log. Raises CorruptMessage, after which the column is unusable."""

    def column(self, kind: Any) -> Any:
        """The column as an Arrow array of this type. Call it last. Raises pa.ArrowInvalid."""


class Growing:
    """A numpy array in Arrow's memory that is filled from its beginning, and grows as needed."""

    def __init__(self, kind: Any, room: int) -> None:
        """`room`: how many elements fit before it has to grow."""
        self._kind = kind
        self._cells = room_for(room, kind)
        self.used = 0

    def more(self, count: int) -> Any:
        """A view of the next `count` elements, which the caller has to set."""
        begin, self.used = self.used, self.used + count
        if self.used > len(self._cells):
            before, self._cells = self._cells, room_for(self.used + self.used // 2, self._kind)
            self._cells[:begin] = before[:begin]
        return self._cells[begin : self.used]

    def filled(self) -> Any:
        """A view of all elements so far."""
        return self._cells[: self.used]


class Offsets:
    """Fills a column of offsets (int64)."""

    def __init__(self) -> None:
        self._parts: list[range | Any] = []

    def add(self, piece: Piece) -> None:
        self._parts.append(piece.offsets)

    def column(self, kind: Any) -> Any:
        found = room_for(sum(map(len, self._parts)), np.int64)
        row = 0
        for part in joined(self._parts):
            is_run = isinstance(part, range)
            found[row : row + len(part)] = np.arange(part.start, part.stop) if is_run else part
            row += len(part)
        return integers(found).cast(kind)


class Timestamps:
    """Fills a column of timestamps, which are milliseconds in the log."""

    def __init__(self, room: int) -> None:
        """`room`: how many are expected."""
        self._room = room
        self._moments: Growing | None = None

    def add(self, piece: Piece) -> None:
        if self._moments is None:
            self._moments = Growing(np.int64, self._room)
        piece.set_moments(self._moments.more(piece.rows))

    def column(self, kind: Any) -> Any:
        found = integers(np.empty(0, np.int64) if self._moments is None else self._moments.filled())
        return found if pa.types.is_integer(kind) else found.view(pa.timestamp("ms", "UTC")).cast(kind)


class Strings:
    """Fills a column of keys or values. Strings of equal length are copied together; adjacent nulls are one array."""

    def __init__(self, name: str, room: int, bytes_max: int) -> None:
        """`name`: `keys` or `values`. `room`, `bytes_max`: how many strings are expected, with how many bytes."""
        self._name = name
        self._room = room
        self._bytes_max = bytes_max
        self._made: list[Any] = []
        """The finished arrays, in order."""
        self._nulls = 0
        """How many nulls follow `_made`."""
        self._grids: Growing | None = None
        """The bytes of the strings that follow `_made`; then `_nulls` is 0."""
        self._runs: list[tuple[int, int]] = []
        """Their runs of equal length: (length, how many)."""

    def add(self, piece: Piece) -> None:
        grid = piece.grid(self._name)
        if grid is not None:
            self._add_grid(*grid)
            return
        found = piece.strings(self._name)
        self._end_grids()
        if found is None:
            self._nulls += piece.rows
        else:
            self._end_nulls()
            self._made.append(found)

    def column(self, kind: Any) -> Any:
        self._end_grids()
        self._end_nulls()
        found = self._made[0] if len(self._made) == 1 else pa.concat_arrays(self._made or [pa.nulls(0, pa.binary())])
        return found if found.type == kind else found.cast(kind)

    def _add_grid(self, grid: Grid, begin: int, count: int) -> None:
        self._end_nulls()
        size = grid.width * count
        if self._grids is None:
            self._grids = Growing(np.uint8, max(size, min(grid.width * self._room, self._bytes_max)))
        strings.copy_grid(grid, begin, count, self._grids.more(size))
        if self._runs and self._runs[-1][0] == grid.width:
            count += self._runs.pop()[1]
        self._runs.append((grid.width, count))

    def _end_grids(self) -> None:
        if self._grids is not None:
            self._made.append(strings.of_runs(self._runs, self._grids.filled()))
            self._grids, self._runs = None, []

    def _end_nulls(self) -> None:
        if self._nulls:
            self._made.append(strings.nulls(self._nulls))
            self._nulls = 0


class Headers:
    """Fills a column of headers; null for a record without headers."""

    def __init__(self, kind: Any) -> None:
        """`kind`: the type of the column."""
        self._kind = kind
        self._made: list[Any] = []

    def add(self, piece: Piece) -> None:
        found = piece.headers()
        kind = self._kind
        self._made.append(pa.nulls(piece.rows, kind) if found is None else strings.of_headers(found, kind))

    def column(self, kind: Any) -> Any:
        return self._made[0] if len(self._made) == 1 else pa.concat_arrays(self._made or [pa.nulls(0, kind)])


def joined(parts: Iterable[range | Any]) -> Iterator[range | Any]:
    """The same offsets, with ranges that continue each other joined into one."""
    run = range(0)
    for part in parts:
        if not len(part):  # not `if not part`: that is an error for a numpy array
            continue
        if isinstance(part, range) and run and run.stop == part.start:
            run = range(run.start, part.stop)
            continue
        if run:
            yield run
        if isinstance(part, range):
            run = part
        else:
            run = range(0)
            yield part
    if run:
        yield run
