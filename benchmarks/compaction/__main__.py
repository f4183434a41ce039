"""Measure the cleaner on one core, or draw what it does: ``python -m benchmarks.compaction [--picture]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.compaction.measure import cleaned, written
from benchmarks.compaction.picture import PICTURE, draw

SEGMENT_BYTES = 64 << 20


def main() -> int:
    """Return the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000, help="of 100 bytes, with keys of 16 bytes")
    parser.add_argument("--keys", type=int, default=1_000_000, help="different keys, drawn at random")
    parser.add_argument("--folder", help="where the log is written; default: the folder for temporary files")
    parser.add_argument("--picture", action="store_true", help=f"draw docs/img/{PICTURE.name}, and measure nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "t-0"
        if options.picture:
            draw(folder)
            return 0
        log = written(folder, options.records, options.keys, SEGMENT_BYTES)
        found = cleaned(log)
        log.close()
    print(f"{found.bytes_before / 1e6:,.0f} MB, {found.records_before:,} records, up to {options.keys:,} keys")
    print(f"{found.records_after:,} records stay, {found.bytes_after / 1e6:,.0f} MB")
    print(f"{found.megabytes_per_s:.0f} MB/s and {found.records_before / found.seconds:,.0f} records/s on one core")
    print(f"{found.memory_bytes / 1e6:.0f} MB of memory")
    return 0


if __name__ == "__main__":
    sys.exit(main())
