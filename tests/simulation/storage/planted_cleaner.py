"""Planted bugs of the log cleaner, which the profile `storage-cleaner` must notice."""

from __future__ import annotations

from raylog.storage.cleaner import rewriting
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.cleaner.rewriting import SegmentWriter, Tombstones
from raylog.storage.cleaner.spill import Spill
from raylog.storage.cleaner.survivors import KeyTable, Survivors
from raylog.storage.log import recovery
from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.planted.bugs import bugs, nothing
from tests.simulation.storage.runs import STORAGE_CLEANER

CLEANER_BUGS = (
    *bugs(
        STORAGE_CLEANER,
        ("S14",),
        (
            "the first record of each key stays",
            5,
            KeyTable,
            "survivors",
            "last.update(_READ.iter_unpack(piece))",
            "for key, number in _READ.iter_unpack(piece):\n                    last.setdefault(key, number)",
        ),
        ("two keys are taken for one", 5, KeyTable, "add", "pack(code, crc32(key), number)", "pack(0, 0, number)"),
        ("records without a key are removed", 5, KeyTable, "add", "self._found.keep((number,))", "pass"),
        (
            "keys that went to a file are forgotten",
            10,
            Spill,
            "pieces",
            "while length:",
            "while False:",
        ),
        (
            "of keys that went to a file twice, only the last piece is read",
            20,
            Spill,
            "pieces",
            "while length:",
            "if length:",
        ),
        (
            "of records behind the first range none stays",
            10,
            Survivors,
            "_load",
            "self._waiting.pieces(place)",
            "()",
        ),
        (
            "the records of a batch are counted from the one before",
            5,
            Survivors,
            "_spread",
            "spread[start & 7 : (start & 7) + count]",
            "spread[max(0, (start & 7) - 1) :][:count]",
        ),
        (
            "a removal goes before its readers have seen it",
            20,
            Tombstones,
            "chosen",
            "if horizon_ms is not None and self.now_ms >= horizon_ms:",
            "if True:",
        ),
        (
            "a removal stays permanently",
            60,
            Tombstones,
            "chosen",
            "if horizon_ms is not None and self.now_ms >= horizon_ms:",
            "if False:",
        ),
        (
            "every cleaning puts the end of a removal off",
            60,
            SegmentWriter,
            "_chosen",
            "(horizon if horizon is not None else tombstones.horizon_ms)",
            "tombstones.horizon_ms",
        ),
        ("a filler spans two leader epochs", 20, SegmentWriter, "_extend_gap", "gap[2] == epoch and ", ""),
        (
            "what is not committed is cleaned",
            20,
            LogCleaning,
            "cleanable",
            "upper=log.last_stable_offset(min(high_watermark, log.synced_end_offset))",
            "upper=1 << 62",
        ),
    ),
    *bugs(
        STORAGE_CLEANER,
        ("S14", "S5", "S2", "S10"),
        (
            "a log that was cut meanwhile takes what was cleaned",
            60,
            LogCleaning,
            "take_cleaned",
            "order.generation != log.generation or not all(id(segment) in known for segment in order.segments)",
            "not known",
        ),
    ),
    *bugs(
        STORAGE_CLEANER,
        ("S14", "S5", "S2"),
        ("a thinned batch closes its gaps", 5, rewriting, "thinned", "gaps = None if", "gaps = None if True or"),
        (
            "the last batch of a producer goes with its records",
            20,
            SegmentWriter,
            "_emptied",
            "if is_last:",
            "if False:",
        ),
        (
            "the cleaner knows no producers",
            60,
            LogCleaning,
            "order_cleaning",
            "frozenset(log.producers.producers)",
            "frozenset()",
        ),
    ),
    *bugs(
        STORAGE_CLEANER,
        ("S1", "S2", "S3", "S5", "S9"),
        (
            "a cleaned segment is not synced before it counts",
            40,
            SegmentWriter,
            "finish",
            "self.segment.sync()",
            "pass",
        ),
        ("a recovery does not finish a swap", 40, recovery, "finish_swaps", nothing),
        (
            "a recovery keeps what a swap has replaced",
            60,
            recovery,
            "finish_swaps",
            "if other.stem.isdigit() and",
            "if False and",
        ),
    ),
    *bugs(
        STORAGE_CLEANER,
        ("S12",),
        (
            "a replaced segment is unlinked at once",
            100,
            PartitionLog,
            "replace_segments",
            "now_ms + self.config.file_delete_delay_ms",
            "now_ms - 1",
        ),
    ),
)
