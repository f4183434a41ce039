"""Counters of a replica's process: plain integers, increased once per batch and read at a scrape."""

from __future__ import annotations

import time

from raylog.core.metrics.histogram import LatencyHistogram
from raylog.core.metrics.totals import Reading
from raylog.core.metrics.usage import Usage


class ReplicaCounters:
    """What a replica's process has done since its start. Every number only grows."""

    __slots__ = (
        "batches_in",
        "born_ms",
        "bytes_in",
        "bytes_out",
        "cleaner_bytes_read",
        "cleaner_bytes_written",
        "cleaner_failures",
        "cleaner_ms",
        "cleaner_records_removed",
        "cleanings",
        "fetch",
        "fetches",
        "flush",
        "produce",
        "records_in",
        "replication_bytes_in",
        "replication_bytes_out",
        "scrub_bytes",
        "scrub_damages",
        "scrub_passes",
        "scrub_remade",
    )

    def __init__(self) -> None:
        self.born_ms = time.monotonic_ns() // 1_000_000
        self.batches_in = 0
        """Batches that producers appended; a batch of a repeated request counts once."""
        self.records_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        """Bytes of answers to consumers, including those that a consumer on this machine reads from the files."""
        self.fetches = 0
        """Answers to consumers."""
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.cleanings = 0
        """Cleanings whose result was put in place; the next four counters are about these."""
        self.cleaner_bytes_read = 0
        self.cleaner_bytes_written = 0
        self.cleaner_records_removed = 0
        self.cleaner_ms = 0
        """How long they took in milliseconds, including waits for the throttle."""
        self.cleaner_failures = 0
        """Cleanings that ended with an error."""
        self.scrub_passes = 0
        """Passes of the scrub over the log; the next three counters are about these."""
        self.scrub_bytes = 0
        self.scrub_damages = 0
        self.scrub_remade = 0
        """Indexes and other small files that were rebuilt."""
        self.produce = LatencyHistogram()
        """From the arrival of a produce request until it is acknowledged (acks 1 and all)."""
        self.fetch = LatencyHistogram()
        """From the arrival of a consumer's fetch until its answer, including the wait for records, as in Kafka."""
        self.flush = LatencyHistogram()
        """Duration of syncs to disk; observed in the thread that syncs."""

    def to_wire(self) -> dict[str, object]:
        """Return the msgpack form, read by :func:`reading_from_wire`."""
        return {
            "born_ms": self.born_ms,
            "counters": {
                "batches_in": self.batches_in,
                "records_in": self.records_in,
                "bytes_in": self.bytes_in,
                "bytes_out": self.bytes_out,
                "fetches": self.fetches,
                "replication_bytes_in": self.replication_bytes_in,
                "replication_bytes_out": self.replication_bytes_out,
                **(self._cleaner_counters() if self.cleanings or self.cleaner_failures else {}),
                **(self._scrub_counters() if self.scrub_bytes or self.scrub_passes else {}),
            },
            "latencies": {
                name: [list(histogram.filled().items()), histogram.sum_us]
                for name, histogram in (("produce", self.produce), ("fetch", self.fetch), ("flush", self.flush))
            },
        }

    def _scrub_counters(self) -> dict[str, int]:
        """The counters of the scrub, which only a replica that has scrubbed its log reports."""
        return {
            "scrub_passes": self.scrub_passes,
            "scrub_bytes": self.scrub_bytes,
            "scrub_damages": self.scrub_damages,
            "scrub_remade": self.scrub_remade,
        }

    def _cleaner_counters(self) -> dict[str, int]:
        """The counters of the cleaner, which only a replica that has cleaned its log reports."""
        return {
            "cleanings": self.cleanings,
            "cleaner_bytes_read": self.cleaner_bytes_read,
            "cleaner_bytes_written": self.cleaner_bytes_written,
            "cleaner_records_removed": self.cleaner_records_removed,
            "cleaner_ms": self.cleaner_ms,
            "cleaner_failures": self.cleaner_failures,
        }


def reading_from_wire(row: object, usage: Usage) -> Reading:
    """Parse the counters of a process; unknown names are kept, missing ones count as 0. Raises ValueError."""
    try:
        if not isinstance(row, dict):
            raise TypeError(f"{row!r:.80} is no mapping")
        return Reading(
            born_ms=int(row["born_ms"]),
            counters={str(name): int(value) for name, value in row["counters"].items()},
            latencies={
                str(name): ({int(bucket): int(count) for bucket, count in filled}, int(sum_us))
                for name, (filled, sum_us) in row["latencies"].items()
            },
            refusals=usage.refusals,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no counters: {error!r}") from None
