"""The vocabulary of the log tests: make batches, open a log, crash it, read it whole."""

import os
import shutil
from pathlib import Path
from typing import Any

from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch
from raylog.storage.log.partition_log import LogConfig, PartitionLog

TOPIC_ID = "0123456789abcdef"
NOW = 1_700_000_000_000


def batch(*values: bytes, timestamps: list[int] | None = None, **fields: Any) -> bytes:
    """A producer's batch of these values."""
    return encode_batch(None, list(values), timestamps or [NOW] * len(values), None, BatchMeta(**fields))


def produced(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> bytes:
    """A batch of an idempotent producer."""
    values = [b"%d" % (sequence + n) for n in range(count)]
    return batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def open_log(folder: Path, *, topic_id: str = TOPIC_ID, now_ms: int = NOW, **config: Any) -> PartitionLog:
    """Create or recover the log in `folder`."""
    return PartitionLog.open(folder, LogConfig(**config), topic_id=topic_id, topic="t", partition=0, now_ms=now_ms)


def crashed(log: PartitionLog, to: Path) -> Path:
    """What a killed process leaves behind: the files as they are, in the new folder `to`. The log itself is closed."""
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(log.folder, to)
    log.close()
    return to


def whole(log: PartitionLog) -> bytes:
    """All bytes that can be read."""
    parts, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        parts.append(data)
        offset = [header for _, header in iter_headers(data)][-1].next_offset
    return b"".join(parts)


def values_of(data: bytes) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record; raises on any corruption."""
    found: list[tuple[int, bytes | None]] = []
    for position, header in iter_headers(data):
        columns = decode_batch(data, position, header)
        assert columns.values is not None
        found += zip(columns.offsets, columns.values, strict=True)
    return found


def open_files_below(folder: Path) -> list[str]:
    """The paths below `folder` that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the listing's own descriptor
        if target.startswith(str(folder)):
            found.append(target)
    return found
