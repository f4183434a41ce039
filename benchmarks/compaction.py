"""The log cleaner alone, on one core: writes a log with many records for each key, and cleans it."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.options import Parser
from benchmarks.peers.processes import own_memory
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.log.config import CompactionRules, LogConfig
from raylog.storage.log.partition_log import PartitionLog

NOW_MS: Final = 1_700_000_000_000
AT_ONCE: Final = CompactionRules(min_cleanable_dirty_ratio=0.0)
BATCH_RECORDS: Final = 1_000
VALUE_BYTES: Final = 100
SEGMENT_BYTES: Final = 64 << 20


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
    order = LogCleaning(log).order_cleaning(log.log_end_offset, NOW_MS, AT_ONCE)
    assert order is not None, "there is nothing to clean"
    before = _forget_peak()
    began_s = time.process_time()
    result = clean(order)
    seconds = time.process_time() - began_s
    peak = own_memory("VmHWM")
    numbers = (result.bytes_read, result.bytes_written, result.records_read, result.records_kept)
    assert LogCleaning(log).take_cleaned(result, NOW_MS), "the log was cut meanwhile"
    return Cleaned(seconds, *numbers, peak - before)


def _forget_peak() -> int:
    """Let the kernel count the peak from now on; return the memory that the process has."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return own_memory("VmRSS")


def main(given: Sequence[str]) -> int:
    """Write, clean, and print what it took."""
    parser = Parser("compaction", __doc__)
    parser.add_argument("--records", type=int, default=4_000_000, help="of 100 bytes, with keys of 16 bytes")
    parser.add_argument("--keys", type=int, default=1_000_000, help="different keys, drawn at random")
    parser.add_data()
    chosen = parser.parse_args(given)
    with tempfile.TemporaryDirectory(dir=chosen.data) as name:
        log = written(Path(name) / "t-0", chosen.records, chosen.keys, SEGMENT_BYTES)
        if len(log.segments) < 2:
            parser.error(f"--records {chosen.records} fill no segment of {SEGMENT_BYTES >> 20} MiB: nothing is cleaned")
        found = cleaned(log)
        log.close()
    print(f"{found.bytes_before / 1e6:,.0f} MB, {found.records_before:,} records, up to {chosen.keys:,} keys")
    print(f"{found.records_after:,} records stay, {found.bytes_after / 1e6:,.0f} MB")
    print(f"{found.megabytes_per_s:.0f} MB/s and {found.records_before / found.seconds:,.0f} records/s on one core")
    print(f"{found.memory_bytes / 1e6:.0f} MB of memory")
    return 0
