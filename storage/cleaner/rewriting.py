"""Writes one cleaned segment out of one or several neighbouring ones: batch by batch, at their offsets.

A batch of which every record stays is copied as it is. Used by `cleaning`, in its thread. May touch: the new file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from raylog.storage.batch.cleaned import FILLER_TIMESTAMP, emptied, filler, horizon_of, is_filler, thinned
from raylog.storage.batch.header import HEADER_BYTES, MAGIC_COLUMNS, BatchHeader, parse_header
from raylog.storage.batch.records import OpenBatch, open_batch
from raylog.storage.errors import CorruptBatch, from_os_error
from raylog.storage.segments.replacing import CLEANED
from raylog.storage.segments.segment import LOG, RELATIVE_OFFSET_MAX, Segment

_WRITE_BYTES: Final = 1 << 20
_NULL: Final = b"\xc0"


class Tombstones:
    """When tombstones, records without a value, are removed: `retention_ms` after a cleaning has met them first."""

    def __init__(self, now_ms: int, retention_ms: int) -> None:
        self.now_ms = now_ms
        self.horizon_ms = now_ms + retention_ms
        """When the tombstones that this cleaning meets first may be removed, in milliseconds since 1970."""

    def chosen(
        self, chosen: bytes, values: Sequence[bytes | None] | None, horizon_ms: int | None
    ) -> tuple[bytes, bool]:
        """The records of `chosen` that stay, as a byte 0 or 1 each, and whether tombstones are among them.

        `horizon_ms`: when the tombstones of the batch may be removed; None = this cleaning meets them first.
        """
        if values is None:
            alive = bytes(len(chosen))
        else:
            alive = bytes([flag and value is not None for flag, value in zip(chosen, values, strict=True)])
        if alive == chosen:
            return chosen, False
        if horizon_ms is not None and self.now_ms >= horizon_ms:
            return alive, False
        return chosen, True


class SegmentWriter:
    """Writes a cleaned segment. Call `batch` for each batch in order, then `finish`; `discard` after an error."""

    def __init__(self, folder: Path, base_offset: int, *, index_interval: int, created_ms: int) -> None:
        """Raises DiskFull, StorageIoError."""
        self.segment = Segment.create(
            folder, base_offset, index_interval=index_interval, created_ms=created_ms, suffix=LOG + CLEANED
        )
        self.has_changed = False
        """Whether the segment differs from what was read."""
        self.records = 0
        """Records that were written."""
        self.tombstones_due_ms = 0
        """When the first tombstone that stays may be removed, in milliseconds since 1970; 0 = none stays."""
        self._waiting = bytearray()
        self._headers: list[tuple[int, int, int, int]] = []
        self._gap: tuple[int, int, int] | None = None
        """A filler that may still grow: base offset, next offset, leader epoch."""

    def batch(
        self, data: bytes, position: int, header: BatchHeader, chosen: bytes, tombstones: Tombstones, *, is_last: bool
    ) -> None:
        """Add what stays of a batch. `is_last`: it is a producer's last batch, whose sequence has to stay known."""
        stop = position + header.size
        if header.is_control:
            self._control(data[position:stop], header, is_last=is_last)
            return
        try:
            self._chosen(data, position, header, chosen, tombstones, is_last=is_last)
        except CorruptBatch:  # its body is as its producer sent it, and does not open: it stays as it is
            self._put(data[position:stop], header.base_offset, header.next_offset, header.max_timestamp)
            self.records += header.record_count

    def _chosen(
        self, data: bytes, position: int, header: BatchHeader, chosen: bytes, tombstones: Tombstones, *, is_last: bool
    ) -> None:
        """Add the chosen records of a batch. Raises CorruptBatch, with nothing added, if its body does not open."""
        stop = position + header.size
        opened: OpenBatch | None = None
        horizon = horizon_of(header)
        has_tombstones = False
        if 1 in chosen and _may_have_nulls(data, position, stop, header):
            opened = open_batch(data, position, header)
            chosen, has_tombstones = tombstones.chosen(chosen, opened.column("values"), horizon)
        until = (horizon if horizon is not None else tombstones.horizon_ms) if has_tombstones else None
        if until is not None:
            self.tombstones_due_ms = min(self.tombstones_due_ms or until, until)
        kept = chosen.count(1)
        if kept == 0:
            self._emptied(header, is_last=is_last)
        elif kept == header.record_count and (horizon is not None) == has_tombstones:
            self._put(data[position:stop], header.base_offset, header.next_offset, header.max_timestamp)
            self.records += kept
        else:
            opened = opened or open_batch(data, position, header)
            changed = thinned(header, opened.all(), chosen, until)
            self._put(changed, header.base_offset, header.next_offset, parse_header(changed).max_timestamp)
            self.records += kept
            self.has_changed = True

    def marker(self, data: bytes, header: BatchHeader, left: bytes | None) -> None:
        """Add what stays of a marker, which is `data`; None = nothing."""
        self.has_changed |= left is not data
        if left is None:
            self._extend_gap(header)
        else:
            self._put(left, header.base_offset, header.next_offset, header.max_timestamp)

    def finish(self) -> Segment:
        """Write the rest, and sync the file. Raises DiskFull, StorageIoError."""
        self._close_gap()
        self._flush()
        self.segment.sync()
        return self.segment

    def discard(self) -> None:
        """Remove the file."""
        self.segment.remove_files()

    def _control(self, data: bytes, header: BatchHeader, *, is_last: bool) -> None:
        if header.record_count or (is_last and not is_filler(header)):
            self._put(data, header.base_offset, header.next_offset, header.max_timestamp)
            return
        self.has_changed |= not is_filler(header) or self._gap is not None
        self._extend_gap(header)

    def _emptied(self, header: BatchHeader, *, is_last: bool) -> None:
        self.has_changed = True
        if is_last:
            self._put(emptied(header), header.base_offset, header.next_offset, FILLER_TIMESTAMP)
        else:
            self._extend_gap(header)

    def _extend_gap(self, header: BatchHeader) -> None:
        gap = self._gap
        start, epoch = header.base_offset, header.partition_leader_epoch
        if gap is not None and gap[2] == epoch and header.next_offset - gap[0] <= RELATIVE_OFFSET_MAX:
            start = gap[0]
        else:
            self._close_gap()
        self._gap = (start, header.next_offset, epoch)

    def _close_gap(self) -> None:
        gap, self._gap = self._gap, None
        if gap is not None:
            self._add(filler(*gap), gap[0], gap[1], FILLER_TIMESTAMP)

    def _put(self, data: bytes, base_offset: int, next_offset: int, max_timestamp: int) -> None:
        self._close_gap()
        self._add(data, base_offset, next_offset, max_timestamp)

    def _add(self, data: bytes, base_offset: int, next_offset: int, max_timestamp: int) -> None:
        self._waiting += data
        self._headers.append((base_offset, next_offset, max_timestamp, len(data)))
        if len(self._waiting) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        try:
            self.segment.write(self._waiting)
        except OSError as error:
            raise from_os_error(f"write {self.segment.path}", error) from error
        for header in self._headers:
            self.segment.note(*header)
        self._waiting, self._headers = bytearray(), []


def _may_have_nulls(data: bytes, position: int, stop: int, header: BatchHeader) -> bool:
    """Whether a value may be null: certain only once the batch is opened, but most have not one such byte."""
    is_plain = header.magic == MAGIC_COLUMNS and header.compression == 0
    return not is_plain or data.find(_NULL, position + HEADER_BYTES, stop) >= 0
