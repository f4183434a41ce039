"""The part of a partition log that ends transactions, and states what readers of committed records may read.

`PartitionLog` adds the rest. All calls in the owner's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import BatchHeader, is_transactional, parse_header, stamp_all
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.errors import CorruptBatch, LogDamaged, refused
from raylog.storage.log.config import AppendInfo
from raylog.storage.log.kept_epochs import KeptEpochs
from raylog.storage.log.producer_state import ActiveProducer, ProducerState
from raylog.storage.log.reading import ReadableLog, place_of
from raylog.storage.log.recovery import remake_aborted
from raylog.storage.log.segment import Segment
from raylog.storage.transactions.aborted import AbortedTxn, find

logger = logging.getLogger(__name__)


class TransactionalLog(ReadableLog):
    """See the module."""

    producers: ProducerState
    _kept_epochs: KeptEpochs

    if TYPE_CHECKING:  # `PartitionLog` has them

        def _roll_if_due(self, size: int, last: BatchHeader, now_ms: int) -> None:
            """Begin a new segment before an append of `size` bytes if it is time."""

        def _write(
            self,
            payload: Buffer,
            headers: list[BatchHeader],
            began: tuple[tuple[int, int], ...],
            now_ms: int,
            markers: Mapping[int, TxnMarker],
        ) -> AppendInfo:
            """Append stamped batches."""
            raise NotImplementedError

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, perhaps by an error: it is to be opened again."""
        return self._closed_because is not None

    def count_producers_as_seen(self, now_ms: int) -> None:
        """Restart the idle time of all producers, after which those that send nothing are forgotten."""
        self.producers.count_as_seen(now_ms)

    def transaction_of(self, payload: Buffer) -> tuple[int, int, bool] | None:
        """(Producer id, epoch, whether an append would open the transaction here) of the payload's transaction.

        None = no batch belongs to one. Batches of an old epoch are left out, as an append refuses them. Read up to the
        first header that is malformed: a payload with such a header is refused. Raises InvalidRecord if the batches
        belong to several transactions.
        """
        if not is_transactional(payload):
            return None
        known = self.producers
        found: tuple[int, int] | None = None
        position = 0
        while position < len(payload):
            try:
                header = parse_header(payload, position)
            except CorruptBatch:
                break
            position += header.size
            writer = header.producer_id, header.producer_epoch
            if not header.is_transactional or known.has_fenced(*writer):
                continue
            if found not in (None, writer):
                raise refused("its batches are of several transactions; send those of each producer alone")
            found = writer
        return None if found is None else (*found, found[0] not in known.transactions.open)

    def append_marker(self, marker: TxnMarker, leader_epoch: int, now_ms: int) -> AppendInfo:
        """End a producer's transaction, as its leader; in the page cache on return.

        A marker that was written before is answered with `duplicate` and the end of the log, below which it lies.
        Raises InvalidProducerEpoch, TransactionCoordinatorFenced, DiskFull, StorageIoError; nothing is kept then.
        """
        self._require_open()
        offset = self.log_end_offset
        if not self.producers.check_marker(marker):
            return AppendInfo(offset, offset, duplicate=True, max_timestamp=-1, batches=1)
        began = self._kept_epochs.enter([(leader_epoch, offset)])
        payload = bytearray(marker.encode())
        header = parse_header(payload)
        self._roll_if_due(len(payload), header, now_ms)
        stamped = stamp_all(memoryview(payload), [(0, header)], offset, leader_epoch)
        return self._write(payload, stamped, began, now_ms, {offset: marker})

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction has begun here and has no marker."""
        return bool(self.producers.transactions.open)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """First offset of the oldest transaction that has not ended below the high watermark; None without one."""
        first = self.producers.transactions.first_unstable(high_watermark)
        return first if first is None else max(first, self.log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: readers of committed records get what lies below it."""
        first = self.producers.transactions.first_unstable(high_watermark)
        return high_watermark if first is None else min(high_watermark, max(first, self.log_start_offset))

    def may_have_aborted(self, start: int) -> bool:
        """Whether aborted transactions are known in a segment with offsets at or above `start`."""
        if self.producers.transactions.aborted:
            return True
        return any(segment.has_aborted for segment in self.segments[place_of(self.segments, start) :])

    def aborted_transactions(self, start: int, upper: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with offsets in [start, upper), by first offset.

        From its first offset on the producer's batches are to be skipped, up to its next abort marker. `upper` lies at
        or below the last stable offset. Raises LogDamaged, StorageIoError, DescriptorsExhausted.
        """
        self._require_open()
        found = self.aborted_between(start, upper)
        return sorted([(entry.producer_id, entry.first_offset) for entry in found], key=lambda entry: entry[1])

    def aborted_between(self, start: int, upper: int) -> list[AbortedTxn]:
        """The aborted transactions with offsets in [start, upper), by their markers."""
        found: list[AbortedTxn] = []
        for segment in self.segments[place_of(self.segments, start) : -1]:
            if segment.has_aborted:
                self._recent.touch(segment)
                if find(self._aborted_of(segment), start, upper, found):
                    return found
        find(self.producers.transactions.aborted, start, upper, found)
        return found

    def _aborted_of(self, segment: Segment) -> list[AbortedTxn]:
        """The aborted transactions of a segment; a damaged file is rebuilt: the batches have all that it holds."""
        try:
            return segment.aborted()
        except LogDamaged as damage:
            logger.warning("%s; it is made again from the batches", damage)
            remake_aborted(
                [each for each in self.segments if each.base_offset <= segment.base_offset],
                {segment.base_offset},
            )
            return segment.aborted()

    def active_producers(self) -> list[ActiveProducer]:
        """The producers that the partition knows, by id."""
        self._require_open()
        return self.producers.active()
