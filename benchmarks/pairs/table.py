"""What pairs of measurements say: medians of ratios with their quartiles, as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.report.stats import percentile


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a row."""

    rate: float
    """Records a second."""
    processor_s: float
    """Seconds of the machine's processors for each record."""
    took_s: float


def as_markdown(runs: Mapping[str, tuple[Sequence[Run], Sequence[Run]]]) -> str:
    """Return a line for each row: the rates, and what the second has of the first; quartiles in brackets."""
    lines = [
        "| row | rate before | now | now / before | processor time, now / before | pairs of, s |",
        "|---|---|---|---|---|---|",
    ]
    for row, (before, now) in runs.items():
        rates = [later.rate / earlier.rate for earlier, later in zip(before, now, strict=True)]
        used = [later.processor_s / earlier.processor_s for earlier, later in zip(before, now, strict=True)]
        lines.append(
            f"| {row} | {_median(before):,.0f} | {_median(now):,.0f} | {_quartiles(rates)} | {_quartiles(used)} "
            f"| {len(rates)} x {sum(run.took_s for run in before) / len(before):.1f} |"
        )
    return "\n".join(lines)


def _median(runs: Sequence[Run]) -> float:
    return percentile(sorted(run.rate for run in runs), 50)


def _quartiles(values: Sequence[float]) -> str:
    low, middle, high = (percentile(sorted(values), percent) for percent in (25, 50, 75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
