"""Sums over processes that start and end, which never fall: counters for Prometheus. Pure.

A process counts from 0 when it starts. The sum over running processes would fall when one ends, and Prometheus would
take the fall for a restart and count everything again. So a collector adds each process's increase since its last read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.core.metrics.histogram import LatencyHistogram

WINDOW_MS: Final = 300_000
"""Quantiles cover five minutes, or more where the page was not read at that time."""
MARK_MS: Final = 15_000
"""Least time between two copies of the histograms."""
FAILED: Final = {"produce": "failed_produce", "fetch": "failed_fetch", "fetch_near": "failed_fetch"}
"""Method -> the counter of its refusals in each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The counters of one incarnation of a process. ``born_ms`` identifies the incarnation (monotonic clock)."""

    born_ms: int
    counters: Mapping[str, int]
    latencies: Mapping[str, tuple[Mapping[int, int], int]]
    """Filled buckets and sum in microseconds, by name."""
    refusals: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Requests that were answered with an error, by method and error code."""


@dataclass(slots=True)
class Totals:
    """Sums of the counters of processes while this collector ran; ``counters`` by group (a topic).

    Invariant: no figure ever falls. ``born_ms`` is the collector's own start (monotonic clock). A process that is older
    than the collector counts from its first reading on, so that a restarted collector begins at 0.
    """

    born_ms: int
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """By group, then by name."""
    latencies: dict[str, LatencyHistogram] = field(default_factory=dict)
    """By name, over all groups."""
    refusals: dict[tuple[str, int], int] = field(default_factory=dict)
    """By method and error code, over all groups."""
    _last: dict[Hashable, Reading] = field(default_factory=dict)
    _marks: deque[tuple[int, dict[str, LatencyHistogram]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Begin the window at the collector's start, without observations."""
        self._marks.append((self.born_ms, {}))

    def take(self, group: str, process: Hashable, reading: Reading) -> None:
        """Add the increase of a process since its last reading."""
        last = self._last.get(process)
        if last is not None and last.born_ms != reading.born_ms:
            last = None
        elif last is None and reading.born_ms < self.born_ms:
            last = reading
        self._last[process] = reading
        sums = self.counters.setdefault(group, {})
        before = {} if last is None else last.counters
        for name, value in reading.counters.items():
            sums[name] = sums.get(name, 0) + max(0, value - before.get(name, 0))
        for name, (counts, sum_us) in reading.latencies.items():
            known, known_us = ({}, 0) if last is None else last.latencies.get(name, ({}, 0))
            changed = counts.items() - known.items()  # most buckets stand still between two readings
            grown = {bucket: count - known.get(bucket, 0) for bucket, count in changed}
            histogram = self.latencies.setdefault(name, LatencyHistogram())
            histogram.add({bucket: count for bucket, count in grown.items() if count > 0}, max(0, sum_us - known_us))

        refused_before = {} if last is None else last.refusals
        for (method, code), count in reading.refusals.items():
            grown_by = max(0, count - refused_before.get((method, code), 0))
            self.refusals[method, code] = self.refusals.get((method, code), 0) + grown_by
            failed = FAILED.get(method)
            if failed is not None:
                sums[failed] = sums.get(failed, 0) + grown_by

    def latency(self, name: str) -> LatencyHistogram:
        """Return the observations since this collector started."""
        return self.latencies.get(name) or LatencyHistogram()

    def forget(self, present: set[Hashable]) -> None:
        """Drop the last readings of processes that have ended; the sums stay."""
        for process in [item for item in self._last if item not in present]:
            del self._last[process]

    def forget_groups(self, present: set[str]) -> None:
        """Drop the sums of groups that no longer exist (topics that were deleted)."""
        for group in [counter for counter in self.counters if counter not in present]:
            del self.counters[group]

    def recent(self, name: str) -> LatencyHistogram:
        """Return the observations since the newest mark that is five minutes old, or since the start if none is."""
        now = self.latencies.get(name, LatencyHistogram())
        earlier = self._marks[0][1].get(name)
        return now if earlier is None else now.since(earlier)

    def mark(self, now_ms: int) -> None:
        """Store a copy of the histograms, at most once in 15 seconds."""
        while len(self._marks) > 1 and self._marks[1][0] <= now_ms - WINDOW_MS:
            self._marks.popleft()
        if now_ms - self._marks[-1][0] >= MARK_MS:
            self._marks.append((now_ms, {name: item.copy() for name, item in self.latencies.items()}))
