"""Figures of the scrub of logs, and their metrics: how far it is, what it read, and what it found. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.core.metrics.exposition import Family
from raylog.core.metrics.totals import Totals

COUNTERS: Final = (
    ("scrubbed_bytes", "scrub_bytes", "Bytes of logs that were read again to find damage."),
    ("scrub_passes", "scrub_passes", "Times that a whole log was read again."),
    ("scrub_damages", "scrub_damages", "Places with damaged batches that were found so."),
    ("scrub_remade_files", "scrub_remade", "Indexes and other small files that were wrong, and were made again."),
)
"""Part of the name, counter of a replica, help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubFigures:
    """The scrub passes over one log."""

    last_ms: int
    """When the last pass ended, in milliseconds since 1970; 0 = none has."""
    offset: int
    """Offset that the running pass has reached; -1 = none runs."""

    def to_wire(self) -> list[object]:
        """Return the msgpack form, read by :func:`scrub_from_wire`."""
        return [self.last_ms, self.offset]


def scrub_from_wire(row: object) -> ScrubFigures | None:
    """Read the figures of a replica; None if it does not scrub. Raises ValueError for another shape."""
    if row is None:
        return None
    if not isinstance(row, list) or len(row) < 2:
        raise ValueError(f"no figures of a scrub: {row!r:.80}")
    return ScrubFigures(last_ms=int(row[0]), offset=int(row[1]))


def scrub_families(
    broker: int, totals: Totals, logs: Mapping[TopicPartition, ScrubFigures], *, per_partition: bool
) -> list[Family]:
    """Return the metrics of what one broker's replicas scrub."""
    label = str(broker)
    families = []
    for name, counter, text in COUNTERS:
        family = Family(f"raylog_log_{name}_total", "counter", text)
        for topic, counters in sorted(totals.counters.items()):
            if counter in counters:
                family.add(counters[counter], broker=label, topic=topic)
        families.append(family)
    oldest = Family(
        "raylog_log_oldest_scrub_timestamp_seconds",
        "gauge",
        "End of the last scrub of the log that has waited longest for one; 0 = one was never scrubbed.",
    )
    if logs:
        oldest.add(min(figures.last_ms for figures in logs.values()) / 1000, broker=label)
    last = Family("raylog_log_last_scrub_timestamp_seconds", "gauge", "When the last scrub of a log ended.")
    for partition, figures in sorted(logs.items()) if per_partition else ():
        if figures.last_ms:
            labels = {"broker": label, "topic": partition.topic, "partition": str(partition.partition)}
            last.samples.append(("", labels, figures.last_ms / 1000))
    return [*families, oldest, last]
