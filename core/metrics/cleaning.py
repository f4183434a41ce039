"""Figures of the log cleaner and their metrics: how much waits to be cleaned, what cleanings did, which failed. Pure.

The names of gauges are those of Kafka's ``LogCleaner`` and ``LogCleanerManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.core.metrics.exposition import Family
from raylog.core.metrics.totals import Totals

COUNTERS: Final = (
    ("cleanings", "cleanings", 1, "Cleanings of compacted logs whose result was put in place."),
    ("cleaner_failures", "cleaner_failures", 1, "Cleanings that ended with an error; a later one follows."),
    ("cleaner_read_bytes", "cleaner_bytes_read", 1, "Bytes of cleaned segments, before."),
    ("cleaner_written_bytes", "cleaner_bytes_written", 1, "Bytes of cleaned segments, after."),
    ("cleaner_removed_records", "cleaner_records_removed", 1, "Records that cleanings removed."),
    ("cleaner_seconds", "cleaner_ms", 1000, "Time that cleanings took, waiting for their throttle included."),
)
"""Part of the name, counter of a replica, divisor, help."""
_MANAGER: Final = "kafka_log_logcleanermanager"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerFigures:
    """The state of one compacted log."""

    dirty_ratio: float
    """Share of its cleanable bytes that were never cleaned, 0 to 1, when the cleaner last looked."""
    last_run_ms: int
    """When the last cleaning began, in milliseconds since 1970; 0 = none since the replica started."""
    is_failing: bool
    """Whether the last cleaning ended with an error."""

    def to_wire(self) -> list[object]:
        """Return the msgpack form, read by :func:`cleaner_from_wire`."""
        return [self.dirty_ratio, self.last_run_ms, self.is_failing]


def cleaner_from_wire(row: object) -> CleanerFigures | None:
    """Read the figures of a replica; None if its topic is not compacted. Raises ValueError for another shape."""
    if row is None:
        return None
    if not isinstance(row, list) or len(row) < 3:
        raise ValueError(f"no figures of a cleaner: {row!r:.80}")
    return CleanerFigures(dirty_ratio=float(row[0]), last_run_ms=int(row[1]), is_failing=bool(row[2]))


def cleaner_families(
    broker: int, totals: Totals, logs: Mapping[TopicPartition, CleanerFigures], now_ms: int, *, per_partition: bool
) -> list[Family]:
    """Return the metrics of one broker's cleaners. ``now_ms``: milliseconds since 1970."""
    label = str(broker)
    families = []
    for name, counter, divisor, text in COUNTERS:
        family = Family(f"raylog_log_{name}_total", "counter", text)
        for topic, counters in sorted(totals.counters.items()):
            if counter in counters:
                family.add(counters[counter] / divisor, broker=label, topic=topic)
        families.append(family)
    most = max((figures.dirty_ratio for figures in logs.values()), default=0.0)
    dirty = Family(
        f"{_MANAGER}_max_dirty_percent", "gauge", "Dirty share of the compacted log that has most of it, in percent."
    )
    dirty.add(100 * most, broker=label)
    failing = Family(
        f"{_MANAGER}_uncleanable_partitions_count", "gauge", "Compacted logs whose last cleaning ended with an error."
    )
    failing.add(sum(figures.is_failing for figures in logs.values()), broker=label)
    since = Family(f"{_MANAGER}_time_since_last_run_ms", "gauge", "Milliseconds since a cleaning began on this broker.")
    latest = max((figures.last_run_ms for figures in logs.values()), default=0)
    if latest:
        since.add(max(0, now_ms - latest), broker=label)
    return [*families, dirty, failing, since, _recopied(label, totals), *_each(label, logs, per_partition)]


def _recopied(label: str, totals: Totals) -> Family:
    family = Family(
        "kafka_log_logcleaner_cleaner_recopy_percent",
        "gauge",
        "Bytes that cleanings wrote for those they read, in percent.",
    )
    read, written = (
        sum(counters.get(name, 0) for counters in totals.counters.values())
        for name in ("cleaner_bytes_read", "cleaner_bytes_written")
    )
    if read:
        family.add(100 * written / read, broker=label)
    return family


def _each(label: str, logs: Mapping[TopicPartition, CleanerFigures], per_partition: bool) -> list[Family]:
    ratio = Family("raylog_log_dirty_ratio", "gauge", "Share of a compacted log's bytes that wait to be cleaned.")
    last = Family("raylog_log_last_cleaning_timestamp_seconds", "gauge", "When the last cleaning of a log began.")
    for partition, figures in sorted(logs.items()) if per_partition else ():
        labels = {"broker": label, "topic": partition.topic, "partition": str(partition.partition)}
        ratio.samples.append(("", labels, figures.dirty_ratio))
        if figures.last_run_ms:
            last.samples.append(("", labels, figures.last_run_ms / 1000))
    return [ratio, last]
