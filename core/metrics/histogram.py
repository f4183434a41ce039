"""Latency histograms with fixed buckets, cheap enough for the path of every batch. Pure.

Each power of two microseconds is cut into four equal parts, so a quantile is at most an eighth off. Prometheus gets the
powers of two alone as its buckets: those edges are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

PARTS: Final = 4
HIGHEST_POWER: Final = 39
"""Observations of 2**39 microseconds (six days) and more fall into the last bucket."""
BUCKETS: Final = PARTS * (HIGHEST_POWER + 1)
EXPORTED_POWERS: Final = range(7, 26)
"""Powers of two microseconds that Prometheus gets: 0.128 milliseconds to 34 seconds."""


class LatencyHistogram:
    """Counts of durations. Invariant: ``count == sum(counts)``; every figure only grows."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKETS
        """Observations by bucket; see :func:`upper_us`."""
        self.sum_us = 0
        """Sum of all observations in microseconds."""

    def observe_ns(self, duration_ns: int) -> None:
        """Count one duration, in nanoseconds; a negative one counts as 0."""
        us = duration_ns // 1000
        if us < PARTS:
            self.counts[us if us > 0 else 0] += 1
            if us < 0:
                return
        else:
            power = us.bit_length()
            if power > HIGHEST_POWER:
                self.counts[-1] += 1
            else:
                self.counts[(power << 2) | ((us >> (power - 3)) & 3)] += 1
        self.sum_us += us

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def add(self, counts: Mapping[int, int], sum_us: int) -> None:
        """Add what another histogram counted; buckets that do not exist here count as the last one."""
        for bucket, count in counts.items():
            self.counts[bucket if 0 <= bucket < BUCKETS else -1] += count
        self.sum_us += sum_us

    def filled(self) -> dict[int, int]:
        """Return the buckets that have observations."""
        return {bucket: count for bucket, count in enumerate(self.counts) if count}

    def copy(self) -> LatencyHistogram:
        """Return an independent histogram with the same observations."""
        other = LatencyHistogram()
        other.counts = list(self.counts)
        other.sum_us = self.sum_us
        return other

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return the observations after ``earlier``, an older copy of this histogram."""
        difference = LatencyHistogram()
        difference.counts = [mine - old for mine, old in zip(self.counts, earlier.counts, strict=True)]
        difference.sum_us = self.sum_us - earlier.sum_us
        return difference

    def quantile_us(self, quantile: float) -> float:
        """Return the duration below which that share (0 to 1) of the observations lies; NaN without observations."""
        count = self.count
        if not count:
            return float("nan")
        wanted = quantile * count
        below = 0
        for bucket, here in enumerate(self.counts):
            if here and below + here >= wanted:
                low, high = lower_us(bucket), upper_us(bucket)
                return low + (high - low) * max(0.0, wanted - below) / here
            below += here
        return float(upper_us(BUCKETS - 1))

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper edge in seconds, observations below it) for Prometheus, the infinite bucket aside."""
        rows: list[tuple[float, int]] = []
        total = position = 0
        for power in EXPORTED_POWERS:
            end = (power + 1) << 2  # numbers of `power` bits are below 2**power
            total += sum(self.counts[position:end])
            position = end
            rows.append(((1 << power) / 1_000_000, total))
        return rows


def lower_us(bucket: int) -> int:
    """Return the smallest duration of a bucket, in microseconds."""
    power, part = divmod(bucket, PARTS)
    return bucket if bucket < PARTS else (PARTS + part) << (power - 3) if power >= 3 else PARTS


def upper_us(bucket: int) -> int:
    """Return the duration at which a bucket ends, in microseconds."""
    power = bucket // PARTS
    return bucket + 1 if bucket < PARTS else lower_us(bucket) + (1 << (power - 3)) if power >= 3 else PARTS


def merged(histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
    """Return the sum of several histograms."""
    total = LatencyHistogram()
    for histogram in histograms:
        total.counts = [mine + other for mine, other in zip(total.counts, histogram.counts, strict=True)]
        total.sum_us += histogram.sum_us
    return total
