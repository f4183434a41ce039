"""The picture of a log before and after a cleaning: each record at its offset, by key; SVG, by matplotlib.

Made from the files of a log that the shipped cleaner has cleaned; `python -m benchmarks.compaction --picture` draws it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.compaction.measure import NOW_MS, cleaned, opened
from benchmarks.optional import module
from benchmarks.report.plots import OURS, THEIRS
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch
from raylog.storage.log.partition_log import PartitionLog

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "img" / "cleaner.svg"
KEYS: Final = 24
RECORDS: Final = 600
SEGMENT_BYTES: Final = 5_000
REMOVALS: Final = 0.04
ACTIVE: Final = "#f0f2f4"


class Look(NamedTuple):
    """A log at one moment."""

    records: list[tuple[int, int, bool]]
    """Offset, number of the key, and whether the record has a value."""
    bounds: list[int]
    """First offsets of the segments; the last one takes appends, and is never cleaned."""
    end: int
    size_bytes: int


def draw(folder: Path, path: Path = PICTURE) -> None:
    """Write a log in a folder, clean it, and draw both. Raises Missing without matplotlib."""
    log = _written(folder)
    before = look(log)
    cleaned(log)
    after = look(log)
    log.close()
    matplotlib = module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "raylog", "font.size": 8, "svg.fonttype": "none"})
    plotting = module("matplotlib.pyplot")
    figure, axes = plotting.subplots(2, 1, figsize=(7, 5), sharex=True, sharey=True, layout="constrained")
    _panel(axes[0], before, "before")
    _panel(axes[1], after, "after")
    axes[1].set_xlabel("offset")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plotting.close(figure)


def look(log: PartitionLog) -> Look:
    """Read every record of a log."""
    records: list[tuple[int, int, bool]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        for position, header in iter_headers(data):
            offset = header.next_offset
            if not header.is_control:
                columns = decode_batch(data, position, header)
                values = columns.values or [None] * len(columns.offsets)
                for place, key, value in zip(columns.offsets, columns.keys or (), values, strict=True):
                    records.append((place, int(key or b"0"), value is not None))
    return Look(records, [segment.base_offset for segment in log.segments], log.log_end_offset, log.size_bytes)


def _written(folder: Path) -> PartitionLog:
    """Records of some keys that change often, and of others that change seldom; some are removals."""
    chance = random.Random(7)
    log = opened(folder, SEGMENT_BYTES)
    written = 0
    while written < RECORDS:
        count = chance.randint(1, 8)
        keys: list[bytes | None] = [b"%d" % int(KEYS * chance.random() ** 2) for _ in range(count)]
        values: list[bytes | None] = [None if chance.random() < REMOVALS else b"x" * 60 for _ in range(count)]
        log.append_as_leader(encode_batch(keys, values, [NOW_MS] * count, None, BatchMeta()), 0, NOW_MS)
        written += count
    log.sync()
    return log


def _panel(axis: Any, found: Look, when: str) -> None:
    axis.axvspan(found.bounds[-1], found.end, color=ACTIVE, label="takes appends, never cleaned")
    for bound in found.bounds[1:]:
        axis.axvline(bound, color="#c5ccd1", linewidth=0.6)
    for has_value, colour, marker, name in ((True, OURS, "o", "record"), (False, THEIRS, "x", "removal of a key")):
        rows = [(offset, key) for offset, key, valued in found.records if valued is has_value]
        axis.scatter(*zip(*rows, strict=True), s=7, c=colour, marker=marker, linewidths=0.9, label=name)
    axis.set_ylabel("key")
    axis.set_yticks([])
    axis.set_title(
        f"{when}: {len(found.records)} records, {len(found.bounds)} segments, {found.size_bytes / 1000:.0f} kB",
        loc="left",
    )
