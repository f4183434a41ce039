"""Planted bugs in transactions of a log, which the profile `storage-transactions` must notice."""

from __future__ import annotations

from raylog.storage.batch.marker import TxnMarker
from raylog.storage.cleaner import cleaning
from raylog.storage.cleaner.log_cleaning import Ages, LogCleaning
from raylog.storage.cleaner.markers import Markers
from raylog.storage.log import partition_log, recovery
from raylog.storage.log.open_transactions import Transactions
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.log.reading import SegmentList
from raylog.storage.log.recovery import Recovery
from raylog.storage.segments.segment import Segment
from tests.simulation.planted.bugs import bugs

PROFILE = "storage-transactions"
CAUGHT = ("S15", "S13", "S14", "S5", "S10", "S9")

TRANSACTION_BUGS = bugs(
    PROFILE,
    ("S12",),
    (
        "a segment of markers alone is old at once",
        100,
        partition_log,
        "removable",
        "now_ms - _youngest_ms(segment)",
        "now_ms - segment.max_timestamp",
    ),
) + bugs(
    PROFILE,
    CAUGHT,
    (
        "the stable end forgets a transaction when its marker is written",
        20,
        Transactions,
        "first_unstable",
        "if ended.marker_offset < high_watermark:",
        "if True:",
    ),
    (
        "the oldest transaction is the one that opened last",
        20,
        Transactions,
        "begin",
        "not in self.open",
        "is not None",
    ),
    (
        "the lag of a segment counts from its first batch",
        100,
        Ages,
        "first_ms",
        "for _, header in segment.walk(0) if header.max_timestamp > UNDATED_MS",
        "for _, header in segment.walk(0)",
    ),
    ("a commit counts as an abort", 20, Transactions, "end", "if not marker.committed:", "if True:"),
    (
        "the stable end of an abort lies behind its marker",
        100,
        Transactions,
        "end",
        "next(iter(self.open.values()), offset + 1)",
        "offset + 1",
    ),
    (
        "a look-up of aborted transactions ends too early",
        60,
        SegmentList,
        "aborted_between",
        "if find(self.aborted_of(segment), start, upper, found):",
        "if find(self.aborted_of(segment), start, upper, found) or found:",
    ),
    (
        "a repeated marker ends the next transaction",
        20,
        ProducerState,
        "check_marker",
        "marker.producer_epoch > entry.epoch",
        "marker.producer_epoch >= entry.epoch",
    ),
    (
        "a coordinator is never fenced",
        60,
        ProducerState,
        "check_marker",
        "if BY_ADMINISTRATOR < marker.coordinator_epoch < known:",
        "if False:",
    ),
    (
        "a marker of an administrator lets older coordinators in again",
        600,
        Transactions,
        "end",
        "max(known, marker.coordinator_epoch)",
        "marker.coordinator_epoch",
    ),
    (
        "a plain batch is taken within a transaction",
        60,
        ProducerState,
        "_check_in_transaction",
        "if not header.attributes & TRANSACTIONAL_BIT:",
        "if False:",
    ),
    (
        "a transaction goes on in the next epoch",
        60,
        ProducerState,
        "_check_in_transaction",
        "if header.producer_epoch > entry.epoch:",
        "if False:",
    ),
    (
        "batches of a request are checked without their transaction",
        200,
        ProducerState,
        "staged",
        "copy.transactions.open = {key: opened[key] for key in producer_ids if key in opened}",
        "pass",
    ),
    (
        "a producer with an open transaction is forgotten",
        100,
        ProducerState,
        "expire",
        "and key not in opened",
        "",
    ),
    (
        "a snapshot leaves out the open transactions",
        20,
        Transactions,
        "fields",
        "list(self.open.items())",
        "[]",
    ),
    (
        "a snapshot leaves out the transactions that have just ended",
        100,
        Transactions,
        "fields",
        "sorted(self.coordinator_epochs.items()), list(self.open.items()), ended,",
        "sorted(self.coordinator_epochs.items()), list(self.open.items()), [],",
    ),
    (
        "a sealed segment has no file of aborted transactions",
        20,
        PartitionLog,
        "roll",
        "self._active.keep_aborted(self.producers.transactions.aborted)",
        "pass",
    ),
    (
        "a segment lists the aborted transactions of the one before it too",
        20,
        Transactions,
        "begin_segment",
        "if entry.last_offset >= base_offset",
        "",
    ),
    (
        "recovery takes a marker for a batch",
        20,
        Recovery,
        "_take",
        "decode_marker(data, position, header) if is_marker(header) else None",
        "None",
    ),
    ("a replay takes a marker for a batch", 20, recovery, "marker_at", "if not is_marker(header):", "if True:"),
    (
        "a follower takes a marker for a batch",
        20,
        PartitionLog,
        "append_as_follower",
        "self._write(payload, headers, began, now_ms, markers)",
        "self._write(payload, headers, began, now_ms, {})",
    ),
    (
        "a cut leaves the aborted transactions of the segment",
        100,
        Segment,
        "unseal",
        "for path in self.files()[1:]:",
        "for path in self.files()[1:3]:",
    ),
    ("a marker says the opposite", 20, TxnMarker, "encode", "_COMMIT if self.committed else _ABORT", "_COMMIT"),
    (
        "the cleaner goes on to the high watermark",
        60,
        LogCleaning,
        "cleanable",
        "log.last_stable_offset(min(high_watermark, log.synced_end_offset))",
        "min(high_watermark, log.synced_end_offset)",
    ),
    (
        "an aborted record supersedes the one before it",
        60,
        cleaning,
        "_enter",
        "if aborted.holds(header):",
        "if False:",
    ),
    (
        "the cleaner knows no transaction that was aborted behind what it cleans",
        200,
        LogCleaning,
        "order_cleaning",
        "tuple(log.aborted_between(first.base_offset, behind.base_offset))",
        "tuple(entry for entry in log.aborted_between(first.base_offset, behind.base_offset)"
        " if entry.last_offset < behind.base_offset)",
    ),
    (
        "a marker goes while records of its transaction stay",
        60,
        Markers,
        "left_of",
        "if is_there:",
        "if False:",
        "was_there or is_last",
        "is_last",
    ),
    (
        "a marker goes before its time",
        200,
        Markers,
        "left_of",
        "self.tombstones.now_ms < horizon_ms",
        "False",
    ),
    (
        "a marker goes that its producer is known by",
        200,
        Markers,
        "left_of",
        "was_there or is_last or header.base_offset in self._needed",
        "was_there",
    ),
)
