"""Planted bugs in what a log takes, refuses, finds and removes, which the profile `storage` must notice."""

from __future__ import annotations

from raylog.storage.log import partition_log as log
from raylog.storage.log import reading
from raylog.storage.log.kept_epochs import KeptEpochs
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.segments.replacing import DeletedFiles
from raylog.storage.segments.segment import Segment
from tests.simulation.planted.bugs import bugs

PROFILE = "storage"

CALL_BUGS = (
    *bugs(
        PROFILE,
        ("S1", "S2", "S4", "S5", "S9", "S10"),
        (
            "a second batch follows the first by one offset",
            5,
            log,
            "stamp_all",
            "offset += header.last_offset_delta + 1",
            "offset += 1",
        ),
        (
            "a batch is known again if it is the last one",
            5,
            ProducerState,
            "check",
            "for known in entry.batches:",
            "for known in entry.batches[-1:]:",
        ),
        (
            "a repeated batch is answered with the place of the last one",
            5,
            ProducerState,
            "check",
            "Duplicate(known.first_offset, known.end_offset)",
            "Duplicate(entry.batches[-1].first_offset, known.end_offset)",
        ),
        (
            "a new producer epoch keeps the batches of the old one",
            10,
            ProducerState,
            "apply",
            "entry.batches = []",
            "pass",
        ),
        ("four batches of a producer are known", 10, ProducerState, "apply", "> BATCHES_KEPT", "> 4"),
        (
            "producers are forgotten while they send",
            20,
            PartitionLog,
            "apply_retention",
            "self.config.producer_id_expiration_ms",
            "1000",
        ),
        (
            "what a follower appends is stamped with no time",
            20,
            PartitionLog,
            "append_as_follower",
            "self._write(payload, headers, began, now_ms, markers)",
            "self._write(payload, headers, began, 0, markers)",
        ),
        (
            "producers are never forgotten",
            40,
            PartitionLog,
            "apply_retention",
            "self.producers.expire(now_ms, self.config.producer_id_expiration_ms)",
            "pass",
        ),
        (
            "an answer's first epochs are left out",
            40,
            KeptEpochs,
            "enter",
            "for epoch, start in starts:",
            "for epoch, start in starts[-1:]:",
        ),
    ),
    *bugs(
        PROFILE,
        ("S13", "S10"),
        (
            "a wrong CRC is taken",
            5,
            log,
            "inspect",
            "google_crc32c.value(bytes(view[start:stop])) != header.crc",
            "False",
        ),
        (
            "an older producer epoch is taken",
            60,
            ProducerState,
            "check",
            "header.producer_epoch < entry.epoch",
            "False",
        ),
        ("a gap in the sequences is taken", 10, ProducerState, "check", "first != expected", "False"),
        (
            "batches of a request are checked each by itself",
            40,
            log,
            "check_producers",
            "staged.apply(header, 0, None)",
            "pass",
        ),
        (
            "a leap between the batches of an answer is taken",
            40,
            log,
            "check_offsets",
            "expected += header.last_offset_delta + 1",
            "break",
        ),
    ),
    *bugs(
        PROFILE,
        ("S12",),
        (
            "retention counts a segment that it removes",
            20,
            log,
            "removable",
            "left - segment.size >= config",
            "left >= config",
        ),
        (
            "a segment is as old as its creation",
            40,
            log,
            "removable",
            "now_ms - _youngest_ms(segment)",
            "now_ms - segment.created_ms",
        ),
        (
            "deleted records stay until they are old",
            40,
            log,
            "removable",
            "deleted = segment.next_offset <= log_start",
            "deleted = False",
        ),
        ("a removed segment is unlinked at once", 40, DeletedFiles, "purge", "if moment <= now_ms", "if True"),
        ("a removed segment is never unlinked", 40, DeletedFiles, "purge", "if moment <= now_ms", "if False"),
        (
            "a segment grows without a limit of time",
            40,
            PartitionLog,
            "_roll_if_due",
            "if full or old or far or len(self.producers.transactions.aborted) >= ABORTED_MAX:",
            "if full or far or len(self.producers.transactions.aborted) >= ABORTED_MAX:",
        ),
    ),
    *bugs(
        PROFILE,
        ("S2", "S6", "S9", "S10"),
        (
            "a time is found above the watermark",
            20,
            reading,
            "offset_for_timestamp",
            "if header.next_offset > upper:",
            "if False:",
        ),
        (
            "a time is found below the log start",
            40,
            reading,
            "offset_for_timestamp",
            "and offset >= start",
            "",
        ),
        (
            "deleted records count for the youngest one",
            40,
            reading,
            "max_timestamp",
            "if segment.base_offset >= start:",
            "if True:",
        ),
        (
            "the time index covers the batch behind an entry",
            20,
            Segment,
            "note",
            "append(self.max_timestamp, base_offset",
            "append(max_timestamp, base_offset",
        ),
        (
            "an index entry points behind its batch",
            20,
            Segment,
            "note",
            "append(base_offset - self.base_offset, self.size)",
            "append(base_offset - self.base_offset, self.size + size)",
        ),
        ("a cut leaves recent positions", 120, Segment, "cut", "self._recent.clear()", "pass"),
        (
            "a place in a file names a wrong end",
            5,
            log,
            "places",
            "length, next_offset, status",
            "length, next_offset - 1, status",
        ),
    ),
)
