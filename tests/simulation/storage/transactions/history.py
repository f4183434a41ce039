"""A slow model of a partition's transactions: all follows from the batches that were appended, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raylog.storage.batch.header import parse_header
from raylog.storage.batch.marker import TxnMarker, decode_marker, is_marker
from tests.simulation.storage.model import Stored


class Transaction(NamedTuple):
    """One transaction: the offsets of its batches, and its marker with its offset (-1 = it is open)."""

    producer: int
    batches: tuple[int, ...]
    marker_offset: int = -1
    marker: TxnMarker | None = None

    @property
    def first(self) -> int:
        """Its first offset."""
        return self.batches[0]

    @property
    def is_aborted(self) -> bool:
        """Whether its marker says so."""
        return self.marker is not None and not self.marker.committed


def marker_of(batch: Stored) -> TxnMarker | None:
    """The marker that a batch is; None for any other."""
    header = parse_header(batch.data)
    return decode_marker(batch.data, 0, header) if is_marker(header) else None


def transactions(batches: Iterable[Stored]) -> list[Transaction]:
    """All transactions of these batches: those that have ended, by their markers, then the open ones."""
    opened: dict[int, list[int]] = {}
    ended: list[Transaction] = []
    for batch in batches:
        marker = marker_of(batch)
        if marker is not None:
            offsets = opened.pop(batch.producer, None)
            if offsets is not None:
                ended.append(Transaction(batch.producer, tuple(offsets), batch.base, marker))
        elif parse_header(batch.data).is_transactional:
            opened.setdefault(batch.producer, []).append(batch.base)
    return [*ended, *(Transaction(producer, tuple(offsets)) for producer, offsets in opened.items())]


def lowest_watermark(batches: Iterable[Stored]) -> int:
    """A producer begins a transaction when the marker of the one before is below the high watermark: the lowest such.

    No log has to cope with a lower one.
    """
    markers: dict[int, int] = {}
    lowest = 0
    for batch in batches:
        if batch.producer in markers:
            lowest = max(lowest, markers.pop(batch.producer))
        if marker_of(batch) is not None:
            markers[batch.producer] = batch.end
    return lowest


def ends_of_cleaned(known: Iterable[Transaction], cleaned_to: int) -> int:
    """The high watermark of a cleaning up to `cleaned_to` was not lower: it goes no further than what is stable."""
    return max([cleaned_to, *(found.marker_offset + 1 for found in known if found.first < cleaned_to)])
