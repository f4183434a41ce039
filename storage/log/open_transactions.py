"""The transactions of a partition's producers: those that are open, and those that have ended.

Part of `ProducerState`, which calls `begin` and `end` for every batch that is appended, replicated or replayed. A
transaction opens with its first batch and ends with its marker. Readers of committed records stop at the first offset
of the oldest transaction that is open, or whose marker is not below the high watermark yet. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raylog.storage.batch.marker import TxnMarker
from raylog.storage.segments.aborted import AbortedTxn


class Ended(NamedTuple):
    """The last transaction of a producer that has ended: its first offset, and that of its marker."""

    first_offset: int
    marker_offset: int


class Transactions:
    """The transactions of one partition, by producer id."""

    __slots__ = ("aborted", "coordinator_epochs", "ended", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """First offset of each open transaction; the oldest one is first."""
        self.ended: dict[int, Ended] = {}
        """The last ended transaction of each producer, in the order of the markers. One suffices: a producer's next
        transaction waits until every in-sync replica has the marker of the one before."""
        self.coordinator_epochs: dict[int, int] = {}
        """Highest coordinator epoch that has written a marker of each producer; -1 = only an administrator has."""
        self.aborted: list[AbortedTxn] = []
        """The aborted transactions whose markers lie in the active segment."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transactions) and self.fields() == other.fields()

    __hash__ = None  # type: ignore[assignment]  # a mutable value

    def __bool__(self) -> bool:
        return bool(self.open or self.ended or self.coordinator_epochs or self.aborted)

    def begin(self, producer_id: int, offset: int) -> None:
        """Note a transactional batch: the first one opens the transaction."""
        if producer_id not in self.open:
            self.open[producer_id] = offset

    def end(self, marker: TxnMarker, offset: int) -> None:
        """Note the marker at `offset`. Without an open transaction it only states the coordinator's epoch."""
        producer_id = marker.producer_id
        known = self.coordinator_epochs.get(producer_id, -1)
        self.coordinator_epochs[producer_id] = max(known, marker.coordinator_epoch)
        first = self.open.pop(producer_id, None)
        if first is None:
            return
        self.ended.pop(producer_id, None)
        self.ended[producer_id] = Ended(first, offset)
        if not marker.committed:
            stable = next(iter(self.open.values()), offset + 1)
            self.aborted.append(AbortedTxn(producer_id, first, offset, stable))

    def first_unstable(self, high_watermark: int) -> int | None:
        """First offset of the oldest transaction that has not ended below the high watermark; None without one."""
        first = next(iter(self.open.values()), None)
        for ended in reversed(self.ended.values()):
            if ended.marker_offset < high_watermark:
                break
            if first is None or ended.first_offset < first:
                first = ended.first_offset
        return first

    def begin_segment(self, base_offset: int) -> None:
        """Keep only those aborted transactions whose markers lie at or after `base_offset`."""
        if self.aborted and self.aborted[0].last_offset < base_offset:
            self.aborted = [entry for entry in self.aborted if entry.last_offset >= base_offset]

    def forget(self, producer_id: int) -> None:
        """Drop a producer that was idle for long; it has no open transaction."""
        self.ended.pop(producer_id, None)
        self.coordinator_epochs.pop(producer_id, None)

    def clear(self) -> None:
        """Drop everything."""
        self.open.clear()
        self.ended.clear()
        self.coordinator_epochs.clear()
        self.aborted = []

    def fields(self) -> tuple[Any, ...]:
        """The fields that a snapshot keeps, in the order in which `of` takes them."""
        ended = [(producer_id, *place) for producer_id, place in self.ended.items()]
        return sorted(self.coordinator_epochs.items()), list(self.open.items()), ended, list(self.aborted)

    @classmethod
    def of(
        cls,
        coordinator_epochs: list[tuple[int, int]],
        opened: list[tuple[int, int]],
        ended: list[tuple[int, int, int]],
        aborted: list[AbortedTxn],
    ) -> Transactions:
        """Make it of `fields`."""
        made = cls()
        made.coordinator_epochs = dict(coordinator_epochs)
        made.open = dict(opened)
        made.ended = {producer_id: Ended(first, marker) for producer_id, first, marker in ended}
        made.aborted = aborted
        return made
