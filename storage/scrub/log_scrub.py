"""The scrub of a log: which batches are read again, and the repair of what was found.

Owned by the replica's shell. All calls in the log's thread; the reading itself (`slices`) runs in another.
"""

from __future__ import annotations

import logging

from raylog.storage.batch.header import HEADER_BYTES, parse_header
from raylog.storage.errors import CorruptBatch, LogDamaged
from raylog.storage.files import exists, remove
from raylog.storage.log.checkpoints import EPOCHS, LOG_START, METADATA
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.reading import Span, verify
from raylog.storage.scrub.plan import Place, Stretch
from raylog.storage.scrub.slices import ScrubOrder
from raylog.storage.segments.segment import SNAPSHOT, Segment

logger = logging.getLogger(__name__)


class LogScrub:
    """Orders the slices of one log, confirms the damage found there, and makes damaged files of it again."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def stretches(self) -> list[Stretch]:
        """The segments from the log's start on, in order, each as far as it was synced."""
        log = self._log
        active = log.segments[-1]
        found = [
            Stretch(segment.base_offset, segment.next_offset, segment.size)
            for segment in log.segments[:-1]
            if segment.next_offset > log.log_start_offset
        ]
        if log.synced_end_offset == log.log_end_offset:  # else where a batch ends on the disk is not known
            found.append(Stretch(active.base_offset, active.next_offset, active.size))
        return found

    def order_scrub(self, place: Place, size: int, newest: int) -> ScrubOrder | None:
        """A slice of about `size` bytes from this place on; None if there is nothing to read there any more.

        `newest`: the largest timestamp of the batches before it in its segment. Raises LogClosed.
        """
        log = self._log
        log.require_open()
        segment = self._segment_at(place.base)
        if segment is None or not place.position < segment.size:
            return None
        is_active = segment is log.segments[-1]
        if is_active and log.synced_end_offset != log.log_end_offset:
            return None
        return ScrubOrder(
            path=segment.path,
            place=place,
            size=size,
            end=segment.size,
            last=segment.next_offset,
            newest=newest,
            epochs=tuple(log.epochs.entries),
            log_start=log.log_start_offset,
            is_sealed=segment.sealed and not is_active,
            has_aborted=segment.has_aborted,
        )

    def confirm_damage(self, found: LogDamaged) -> LogDamaged | None:
        """Read the place again: the damage that is there now; None if there is none, or only below the log start.

        It may have been cut, cleaned or removed since. Raises StorageIoError, DescriptorsExhausted.
        """
        log = self._log
        log.require_open()
        segment = next((each for each in log.segments if str(each.path) == found.path), None)
        if segment is None or found.position >= segment.size or segment.next_offset <= log.log_start_offset:
            return None
        if not exists(segment.path):
            after = segment.next_offset
            return LogDamaged(segment.path, 0, segment.base_offset, "the file is missing", next_offset=after)
        try:
            length = HEADER_BYTES
            try:
                length = min(
                    parse_header(segment.read(found.position, HEADER_BYTES)).size, segment.size - found.position
                )
            except CorruptBatch:
                pass  # which `verify` reports
            span = Span(segment, found.position, length, found.offset, segment.next_offset)
            verify(span, segment.read(found.position, length), log.epochs)
        except LogDamaged as damage:
            return damage if max(damage.next_offset, damage.offset + 1) > log.log_start_offset else None
        finally:
            log.segments.recent.touch(segment)
        return None

    def remake_indexes(self, place: Place, why: str) -> bool:
        """Rebuild the indexes of a sealed segment; False if there is no such segment any more.

        Raises LogDamaged, StorageIoError.
        """
        log = self._log
        segment = self._segment_at(place.base)
        if segment is None or not segment.sealed:
            return False
        logger.warning("%s: the indexes are made again from the batches: %s", segment.path, why)
        segment.rebuild_indexes()
        log.segments.recent.touch(segment)
        return True

    def remake_aborted(self, place: Place) -> bool:
        """Rebuild a segment's file of aborted transactions, if it is damaged; False if there is no such file any more.

        Raises LogDamaged, StorageIoError.
        """
        log = self._log
        segment = self._segment_at(place.base)
        if segment is None or not segment.has_aborted or segment is log.segments[-1]:
            return False
        segment.release()  # what is in memory was read before
        log.segments.aborted_of(segment)
        return True

    def write_again(self, names: list[str]) -> int:
        """Write small files again that are damaged on the disk; returns how many. Raises DiskFull, StorageIoError.

        A snapshot of producers is removed instead: an older one and the batches after it give the same state.
        """
        log = self._log
        log.require_open()
        for name in names:
            logger.warning("%s is damaged, and made again", log.folder / name)
            if name.endswith(SNAPSHOT):
                remove(log.folder / name)
            elif name == METADATA:
                log.checkpoints.write_identity()
            elif name == EPOCHS:
                log.checkpoints.write_epochs(log.epochs)
            elif name == LOG_START:
                log.checkpoints.write_log_start(log.log_start_offset)
            else:
                log.checkpoints.write_recovery_point(log.recovery_point)
        return len(names)

    def damaged_files(self) -> list[str]:
        """The small files that are damaged on the disk. May run in another thread. Raises StorageIoError."""
        return self._log.checkpoints.damaged()

    def _segment_at(self, base: int) -> Segment | None:
        return next((segment for segment in self._log.segments if segment.base_offset == base), None)
