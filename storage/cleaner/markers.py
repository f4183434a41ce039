"""Which markers of transactions stay, in a log that is cleaned from its first batch on.

A marker is needed as long as a record of its transaction is in the log: without it a recovery would find the
transaction open. The cleaning that leaves no such record writes into the marker when it may be removed, as into batches
with tombstones (KIP-534); a cleaning after that time removes it. Used by `cleaning`, in its thread. May touch: the
folder's list of files.
"""

from __future__ import annotations

from pathlib import Path

from raylog.storage.batch.cleaned import horizon_of, thinned
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import BatchHeader
from raylog.storage.batch.marker import BY_ADMINISTRATOR, decode_marker, is_marker
from raylog.storage.batch.records import open_batch
from raylog.storage.cleaner.rewriting import Tombstones
from raylog.storage.files import sync_folder
from raylog.storage.segments.segment import snapshot_offsets


def states_coordinator(data: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch is a marker with a coordinator's epoch, below which others are fenced."""
    return is_marker(header) and decode_marker(data, position, header).coordinator_epoch != BY_ADMINISTRATOR


class Markers:
    """Decides what stays of each marker. Call `note` and `left_of` for the batches in the order of the log."""

    def __init__(self, folder: Path, needed: frozenset[int], tombstones: Tombstones) -> None:
        """`needed`: base offsets of markers that stay, because they fence older coordinators of a known producer."""
        self.tombstones = tombstones
        """Has the times: a marker goes `retention_ms` after a cleaning has left no record of its transaction."""
        self._folder = folder
        self._needed = needed
        self._read: set[int] = set()
        """Producers whose open transaction, as far as it was read, had records before this cleaning."""
        self._left: set[int] = set()
        """Producers among them of whose open transaction this cleaning leaves records."""
        self._oldest_snapshot: int | None = None
        """Offset of the oldest producer snapshot in the folder; None = not looked up yet."""

    def note(self, header: BatchHeader, kept: int) -> None:
        """A batch was read, of which `kept` records stay."""
        if header.is_transactional and not header.is_control:
            self._read.add(header.producer_id)
            if kept:
                self._left.add(header.producer_id)

    def left_of(self, data: bytes, header: BatchHeader, segment_end: int, *, is_last: bool) -> bytes | None:
        """What stays of the marker `data`: itself, itself with the time of its removal, or None.

        `segment_end`: where the segment that it was read from ends. `is_last`: it is the last batch of a producer that
        has to stay known. Raises StorageIoError.
        """
        was_there, is_there = header.producer_id in self._read, header.producer_id in self._left
        self._read.discard(header.producer_id)
        self._left.discard(header.producer_id)
        if is_there:
            return data
        horizon_ms = horizon_of(header)
        if horizon_ms is None:
            return thinned(header, open_batch(data, 0, header).all(), b"\1", self.tombstones.horizon_ms)
        is_needed = was_there or is_last or header.base_offset in self._needed
        if is_needed or self.tombstones.now_ms < horizon_ms or self._may_be_replayed(segment_end):
            return data
        return None

    def _may_be_replayed(self, segment_end: int) -> bool:
        """Whether a recovery may begin with a snapshot that still has the transaction, open or aborted.

        Snapshots up to the end of the segment may have it: they list the aborted transactions of the segment that was
        active.
        """
        if self._oldest_snapshot is None:
            self._oldest_snapshot = min(snapshot_offsets(self._folder), default=2**63 - 1)
            sync_folder(self._folder)  # older ones, and segments that were removed, do not come back after a crash
        return self._oldest_snapshot <= segment_end
