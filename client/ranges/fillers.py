"""The columns of a record batch, filled as the batches of the log come. Used by arrow.py. Pure.

A batch is copied out right after it was read, while its bytes are in the processor's cache, and its memory serves the
next one (docs/adr/0055-ranges-into-arrow.md).
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
    """One column."""

    def add(self, piece: Piece) -> None:
        """Append the records of one batch of the log. Raises CorruptMessage; the column cannot be used then."""

    def column(self, kind: Any) -> Any:
        """All that was added as an array of this type. Nothing may be added after it. Raises pa.ArrowInvalid."""


class Growing:
    """An array of numpy in Arrow's memory that is filled from its begin."""

    def __init__(self, kind: Any, room: int) -> None:
        """There is room for so many elements before it grows."""
        self._kind = kind
        self._cells = room_for(room, kind)
        self.used = 0

    def more(self, count: int) -> Any:
        """The next `count` elements, for the caller to set."""
        begin, self.used = self.used, self.used + count
        if self.used > len(self._cells):
            before, self._cells = self._cells, room_for(self.used + self.used // 2, self._kind)
            self._cells[:begin] = before[:begin]
        return self._cells[begin : self.used]

    def filled(self) -> Any:
        """What was set."""
        return self._cells[: self.used]


class Offsets:
    """Offsets, int64."""

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
    """Timestamps, which are milliseconds in the log."""

    def __init__(self, room: int) -> None:
        """`room` is how many are expected."""
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
    """Keys or values: neighbours of one length are copied together, and neighbours without any are one array."""

    def __init__(self, name: str, room: int, bytes_max: int) -> None:
        """`name` is `keys` or `values`; `room`: how many are expected, with at most so many bytes."""
        self._name = name
        self._room = room
        self._bytes_max = bytes_max
        self._made: list[Any] = []
        self._nulls = 0
        """At the end, not in `_made` yet."""
        self._grids: Growing | None = None
        """The strings at the end that are not in `_made` yet; there are no nulls at the end then."""
        self._runs: list[tuple[int, int]] = []
        """Of those: length, and how many of it follow each other."""

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
    """Headers of each record, null for one without."""

    def __init__(self, kind: Any) -> None:
        """`kind` is the type of the column."""
        self._kind = kind
        self._made: list[Any] = []

    def add(self, piece: Piece) -> None:
        found = piece.headers()
        kind = self._kind
        self._made.append(pa.nulls(piece.rows, kind) if found is None else strings.of_headers(found, kind))

    def column(self, kind: Any) -> Any:
        return self._made[0] if len(self._made) == 1 else pa.concat_arrays(self._made or [pa.nulls(0, kind)])


def joined(parts: Iterable[range | Any]) -> Iterator[range | Any]:
    """The same offsets; ranges of step 1 that continue each other are one."""
    run = range(0)
    for part in parts:
        if not len(part):  # of numpy's arrays, the length alone says it
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
