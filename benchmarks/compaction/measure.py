"""Writes a log with many records for each key, cleans it, and measures that: bytes a second, memory."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Final, NamedTuple

from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.rules import CompactionRules
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog

NOW_MS: Final = 1_700_000_000_000
AT_ONCE: Final = CompactionRules(min_cleanable_dirty_ratio=0.0)
BATCH_RECORDS: Final = 1_000
VALUE_BYTES: Final = 100


class Cleaned(NamedTuple):
    """What one cleaning took."""

    seconds: float
    """Of processor time."""
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    memory_bytes: int
    """Most memory that the cleaning took beyond what the process had before."""

    @property
    def megabytes_per_s(self) -> float:
        """Bytes of the log for each second of one core, in MB/s."""
        return self.bytes_before / self.seconds / 1e6


def opened(folder: Path, segment_bytes: int) -> PartitionLog:
    """Open the log of a compacted partition."""
    config = LogConfig(segment_bytes=segment_bytes, file_delete_delay_ms=0, compaction=AT_ONCE)
    return PartitionLog.open(folder, config, topic_id="t" * 32, topic="t", partition=0, now_ms=NOW_MS)


def written(folder: Path, records: int, keys: int, segment_bytes: int, seed: int = 1) -> PartitionLog:
    """Write records with keys drawn at random, so that half of the keys' records are in any half of the log."""
    chance = random.Random(seed)
    log = opened(folder, segment_bytes)
    value: bytes = chance.randbytes(VALUE_BYTES)
    for _ in range(0, records, BATCH_RECORDS):
        names: list[bytes | None] = [b"key-%012d" % chance.randrange(keys) for _ in range(BATCH_RECORDS)]
        batch = encode_batch(names, [value] * BATCH_RECORDS, [NOW_MS] * BATCH_RECORDS, None, BatchMeta())
        log.append_as_leader(batch, 0, NOW_MS)
    log.sync()
    return log


def cleaned(log: PartitionLog) -> Cleaned:
    """Clean the closed segments of a log, in this thread."""
    order = log.order_cleaning(log.log_end_offset, NOW_MS, AT_ONCE)
    assert order is not None, "there is nothing to clean"
    before = _forget_peak()
    began_s = time.process_time()
    result = clean(order)
    seconds = time.process_time() - began_s
    peak = _memory("VmHWM")
    numbers = (result.bytes_read, result.bytes_written, result.records_read, result.records_kept)
    assert log.take_cleaned(result, NOW_MS), "the log was cut meanwhile"
    return Cleaned(seconds, *numbers, peak - before)


def _forget_peak() -> int:
    """Let the kernel count the peak from now on; return the memory that the process has."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """Return a figure of this process's memory, in bytes: VmRSS now, VmHWM the peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {name}")
