"""How long a broker's replicas take to be ready again after a kill: fill logs, kill the writer, open them all at once.

    python -m tools.restart_time --gigabytes 10 --partitions 10 --folder <an empty folder on the disk to try>

Each log is written by one process that ends by SIGKILL, like a broker's replicas, and opened by a process of its own,
all at the same time. The time counts from the start of the first process to the end of the last recovery, so it holds
the start of Python as well. With ``--cold`` the files are dropped from the page cache first. The folder is
emptied afterwards. Run by hand; ``tests/unit/storage/log/test_restart_time.py`` runs it in miniature.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from raylog.storage.batch.records import encode_batch
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog

RECORDS_PER_BATCH = 16
RECORD_BYTES = 1024
SYNC_EVERY_BATCHES = 64
DEADLINE_S = 600.0


@dataclass(frozen=True)
class Restart:
    """Duration of a restart, and the bytes read by its recoveries."""

    bytes_kept: int
    bytes_scanned: int
    seconds: float
    slowest_open_s: float


def write_and_die(folder: Path, log_bytes: int, segment_bytes: int) -> None:
    """Fill one log, syncing as a replica does, and end by SIGKILL. Does not return."""
    log = _open(folder, segment_bytes)
    draw = random.Random(folder.name)
    batches = [
        encode_batch(None, [draw.randbytes(RECORD_BYTES) for _ in range(RECORDS_PER_BATCH)], [1] * RECORDS_PER_BATCH)
        for _ in range(8)
    ]
    number = 0
    while log.size_bytes < log_bytes:
        log.append_as_leader(batches[number % len(batches)], 1, int(time.time() * 1000))
        number += 1
        if number % SYNC_EVERY_BATCHES == 0:
            log.sync()
    log.append_as_leader(batches[0], 1, int(time.time() * 1000))  # the tail that no sync has covered
    os.kill(os.getpid(), signal.SIGKILL)


def open_again(folder: Path, segment_bytes: int) -> None:
    """Recover one log and print what it took: bytes kept, bytes scanned, seconds."""
    began = time.perf_counter()
    log = _open(folder, segment_bytes)
    took = time.perf_counter() - began
    print(log.size_bytes, log.recovered.bytes_scanned, took, flush=True)
    log.close()


def measure(folder: Path, *, partitions: int, log_bytes: int, segment_bytes: int, cold: bool = False) -> Restart:
    """Fill, kill, and time the restart; removes what it wrote."""
    folders = [folder / f"t-{number}" for number in range(partitions)]
    try:
        for item in folders:
            process = _spawn("write", item, log_bytes, segment_bytes)
            process.communicate(timeout=DEADLINE_S)
            if process.returncode != -signal.SIGKILL:
                raise RuntimeError(f"the writer of {item} ended with {process.returncode}")
        if cold:
            for item in folders:
                _forget(item)
        began = time.perf_counter()
        processes = [_spawn("open", folder, log_bytes, segment_bytes) for folder in folders]
        answers = [process.communicate(timeout=DEADLINE_S)[0].split() for process in processes]
        took = time.perf_counter() - began
    finally:
        for item in folders:
            shutil.rmtree(item, ignore_errors=True)
    return Restart(
        bytes_kept=sum(int(kept) for kept, _, _ in answers),
        bytes_scanned=sum(int(scanned) for _, scanned, _ in answers),
        seconds=took,
        slowest_open_s=max(float(seconds) for _, _, seconds in answers),
    )


def _open(folder: Path, segment_bytes: int) -> PartitionLog:
    config = LogConfig(segment_bytes=segment_bytes)
    now_ms = int(time.time() * 1000)
    return PartitionLog.open(folder, config, topic_id="t" * 32, topic="t", partition=0, now_ms=now_ms)


def _forget(folder: Path) -> None:
    """Drop these files from the kernel's page cache."""
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _spawn(what: str, folder: Path, log_bytes: int, segment_bytes: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.restart_time", "--step", what, "--folder", str(folder)]
    command += ["--log-bytes", str(log_bytes), "--segment-bytes", str(segment_bytes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)


def main() -> None:
    """Read the command line, measure, print one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--segment-bytes", type=int, default=LogConfig().segment_bytes)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--log-bytes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--step", choices=["write", "open"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step == "write":
        write_and_die(given.folder, given.log_bytes, given.segment_bytes)
    elif given.step == "open":
        open_again(given.folder, given.segment_bytes)
    else:
        log_bytes = int(given.gigabytes * 1e9 / given.partitions)
        found = measure(
            given.folder,
            partitions=given.partitions,
            log_bytes=log_bytes,
            segment_bytes=given.segment_bytes,
            cold=given.cold,
        )
        print(
            f"{found.bytes_kept / 1e9:.2f} GB in {given.partitions} partitions: ready after {found.seconds:.2f} s "
            f"(slowest recovery {found.slowest_open_s:.2f} s), {found.bytes_scanned / 1e6:.1f} MB scanned"
        )


if __name__ == "__main__":
    main()
