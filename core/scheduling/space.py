"""How much of the log is needed, stretch by stretch. Owned by the machine. Pure.

The counts decide when records are copied, and never what may be deleted: after a change of leaders they may be off by a
few records that were cancelled at that moment.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import astuple, dataclass

from raylog.core.scheduling.places import Places
from raylog.core.scheduling.rows import Relocated, SpaceState


@dataclass(slots=True)
class LogStretch:
    """A part of the log, of consecutive offsets."""

    start: int
    size: int = 0
    """Bytes of all batches."""
    records_size: int = 0
    """Bytes of the batches with producers' records, copies included."""
    records: int = 0
    live: int = 0
    """How many of the records are needed."""

    @property
    def live_bytes(self) -> int:
        """About how many bytes of records are needed."""
        return self.records_size * self.live // self.records if self.records else 0


class Space:
    """The stretches of the log, and where the copies of records are."""

    def __init__(self, stretch_bytes: int) -> None:
        """Begin with an empty log; ``stretch_bytes``: about how long a stretch is."""
        self._stretch_bytes = stretch_bytes
        self._stretches: list[LogStretch] = []
        self._starts: list[int] = []
        self.places = Places()
        self.native_from = 0
        """Each needed record with a lower first offset has a copy."""
        self.moved_records = self.moved_bytes = self.freed_bytes = 0
        """Since this leadership began."""

    # ------------------------------------------------------------ the log

    def appended(self, offset: int, size: int, records: int = 0) -> None:
        """Note a batch of ``size`` bytes; ``records``: how many needed records it has, 0 for a row."""
        if not self._stretches or self._stretches[-1].size >= self._stretch_bytes:
            self._stretches.append(LogStretch(offset))
            self._starts.append(offset)
        stretch = self._stretches[-1]
        stretch.size += size
        if records:
            stretch.records_size += size
            stretch.records += records
            stretch.live += records

    def left(self, offset: int) -> None:
        """Note that a record is not needed any more."""
        stretch = self._of(self.place_of(offset))
        if stretch is not None and stretch.live:
            stretch.live -= 1

    def relocated(self, at: int, row: Relocated, size: int) -> None:
        """Note a row with copies at an offset of the log; ``size`` is that of its batch."""
        for offset in row.offsets:
            self.left(offset)
        if row.replaces:
            self.places.treated(row.replaces, row.upto)
        else:
            self.native_from = max(self.native_from, row.upto)
        if row.offsets:
            self.places.add(row.offsets[0], row.offsets[-1], at)
        self.appended(at, size, len(row.offsets))
        self.moved_records += len(row.offsets)
        self.moved_bytes += size

    def freed(self, before: int) -> None:
        """Note that the log below an offset is deleted."""
        while len(self._stretches) > 1 and self._stretches[1].start <= before:
            self.freed_bytes += self._stretches.pop(0).size
            del self._starts[0]

    # ------------------------------------------------------------ what is where

    def row_of(self, offset: int) -> int | None:
        """Return the offset of the row that may have a record's copy, by its first offset; None = it was not copied."""
        return self.places.row_of(offset) if offset < self.native_from else None

    def place_of(self, offset: int) -> int:
        """Return where a record is in the log now: its own offset, or that of the row with its copy."""
        row = self.row_of(offset)
        return offset if row is None else row

    def _of(self, place: int) -> LogStretch | None:
        index = bisect_right(self._starts, place) - 1
        return self._stretches[index] if index >= 0 else None

    @property
    def size(self) -> int:
        """Bytes of the log, as far as it was read."""
        return sum(stretch.size for stretch in self._stretches)

    def bytes_before(self, offset: int) -> int:
        """Return how many bytes of whole stretches lie below an offset."""
        after = zip(self._stretches, self._starts[1:], strict=False)
        return sum(stretch.size for stretch, end in after if end <= offset)

    @property
    def live_bytes(self) -> int:
        """About how many bytes of records are needed."""
        return sum(stretch.live_bytes for stretch in self._stretches)

    def area(self, runs_bytes: int, records: int) -> int | None:
        """Return the offset up to which the log is to be cleared, if more than half of it is dead; else None.

        ``runs_bytes``: needed bytes that are not records, those of runs and of a checkpoint's pieces. The area up to
        the offset has at most ``records`` needed records, unless it is a single stretch.
        """
        total, dead = self.size, self.size - self.live_bytes - runs_bytes
        live, end = 0, None
        for stretch, after in zip(self._stretches, self._stretches[1:], strict=False):
            live += stretch.live
            if 2 * dead <= total or (end is not None and live > records):
                break
            end = after.start
            free = stretch.size - stretch.live_bytes
            total, dead = total - free, dead - free
        return end

    # ------------------------------------------------------------ checkpoints

    def state(self) -> SpaceState:
        """Return what a checkpoint keeps."""
        return SpaceState(self.native_from, tuple(map(astuple, self._stretches)), self.places.state())

    def restore(self, state: SpaceState) -> None:
        """Begin with what a checkpoint holds."""
        self.native_from, self.places = state.native_from, Places(state.places)
        self._stretches = [LogStretch(*each) for each in state.stretches]
        self._starts = [each.start for each in self._stretches]
