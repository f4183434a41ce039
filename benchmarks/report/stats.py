"""Medians, spreads, ratios and percentiles. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Summary:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float
    count: int

    @property
    def spread(self) -> float:
        """The range as a part of the median: 0.1 is ten percent between the lowest and the highest."""
        return (self.high - self.low) / self.median if self.median else math.inf


def summary(values: Sequence[float]) -> Summary:
    """The median and the range; ValueError for no values."""
    if not values:
        raise ValueError("nothing was measured, so there is no median")
    return Summary(statistics.median(values), min(values), max(values), len(values))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the ascending values do not exceed (nearest rank)."""
    if not ordered:
        raise ValueError("nothing was measured, so there are no percentiles")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is no percentage")
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99, p99.9 and the maximum."""
    ordered = sorted(values)
    found = {f"p{percent:g}": percentile(ordered, percent) for percent in PERCENTILES}
    return {**found, "max": ordered[-1]}


def ratio(ours: float, theirs: float, *, higher_is_better: bool) -> float:
    """Ratio in our favour: 2 is twice the rate, or half the time. Infinite when their rate is zero."""
    better, worse = (ours, theirs) if higher_is_better else (theirs, ours)
    return better / worse if worse else math.inf


def longest_gap(moments: Sequence[float]) -> float:
    """The longest interval between two neighbours of ascending times; 0 for fewer than two."""
    return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=0.0)
