"""Plots of a run: one per scenario, bars beside each other or lines over a growing axis; SVG, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.optional import module
from benchmarks.report.results import RAYLOG, Measured, Results
from benchmarks.report.tables import unit

OURS, THEIRS = "#1b6ca8", "#9aa5ad"
PLOTTED = ("limits", "produce", "consume", "latency", "small", "create", "failover", "together")
CASES_MAX = 5
"""A plot with more cases would be unreadable; the tables have them all."""
BAR_INCHES = 0.24


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw all available plots; returns them. Raises Missing without matplotlib."""
    matplotlib = module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "raylog", "font.size": 8, "svg.fonttype": "none"})
    plotting = module("matplotlib.pyplot")
    folder.mkdir(parents=True, exist_ok=True)
    figures = {scenario: figure for scenario in PLOTTED if (figure := _of_cases(plotting, results, scenario))}
    if lines := _of_growth(plotting, results):
        figures["growth"] = lines
    made = []
    for scenario, figure in figures.items():
        path = folder / f"{scenario}.svg"
        figure.savefig(path, metadata={"Date": None})
        plotting.close(figure)
        made.append(path)
    return made


def _of_cases(plotting: Any, results: Results, scenario: str) -> Any:
    """Bars for each case of a scenario; of many cases those with most contestants. None without measurements."""
    measured = [(case, [row for row in rows if row.rounds]) for name, case, rows in results.cases() if name == scenario]
    most = sorted(measured, key=lambda row: -len(row[1]))[:CASES_MAX]
    cases = [row for row in measured if row in most and row[1]]
    if not cases:
        return None
    heights = [1 + len(rows) for _, rows in cases]
    figure, axes = plotting.subplots(
        len(cases), 1, figsize=(7, BAR_INCHES * sum(heights) + 0.5 * len(cases)), squeeze=False,
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    for axis, (case, rows) in zip(axes[:, 0], cases, strict=True):
        _bars(axis, case, rows)
    return figure


def _of_growth(plotting: Any, results: Results) -> Any:
    """Lines over partitions and over gigabytes, for producing and for consuming; None without measurements."""
    rows = [row for row in results.measured if row.scenario == "growth" and row.metric == "rate" and row.rounds]
    if not rows:
        return None
    figure, axes = plotting.subplots(2, 2, figsize=(7, 5.5), sharey="col", squeeze=False, layout="constrained")
    for line, (words, is_data) in enumerate((("partitions", False), ("GB on disk", True))):
        for column, load in enumerate(("produce", "consume")):
            wanted = [row for row in rows if row.case.startswith(load) and ("on disk" in row.case) == is_data]
            _lines(axes[line][column], wanted)
            axes[line][column].set_title(f"{load}, 1,000 B, RF 1 (thousand records/s)", loc="left", fontsize=8)
            axes[line][column].set_xlabel(words)
    return figure


def _lines(axis: Any, rows: list[Measured]) -> None:
    for number, name in enumerate(dict.fromkeys(row.contestant for row in rows)):
        found = {grown(row.case): row.summary() for row in rows if row.contestant == name}
        points = [(size, item) for size, item in found.items() if item is not None]
        low = [(point.median - point.low) / 1000 for _, point in points]
        high = [(point.high - point.median) / 1000 for _, point in points]
        axis.errorbar(
            [size for size, _ in points], [point.median / 1000 for _, point in points], yerr=[low, high], label=name,
            color=OURS if name.startswith(RAYLOG) else THEIRS, linestyle=("-", "--", ":")[number % 3], marker="o",
            markersize=3, capsize=2,
        )  # fmt: skip
        axis.set_xticks([size for size, _ in points])
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    if rows:
        axis.legend(fontsize=7, frameon=False)


def grown(case: str) -> int:
    """The number of partitions or gigabytes of a growth case: its last part begins with it."""
    return int(case.rpartition(", ")[2].split()[0])


def _bars(axis: Any, case: str, rows: list[Measured]) -> None:
    summaries = [row.summary() for row in rows]
    medians = [summary.median if summary else 0.0 for summary in summaries]
    lows = [summary.median - summary.low if summary else 0.0 for summary in summaries]
    highs = [summary.high - summary.median if summary else 0.0 for summary in summaries]
    colours = [OURS if row.contestant.startswith(RAYLOG) else THEIRS for row in rows]
    places = range(len(rows))
    axis.barh(places, medians, color=colours, height=0.7, xerr=[lows, highs], ecolor="#333333", capsize=2)
    axis.set_yticks(places, [row.contestant for row in rows])
    axis.invert_yaxis()
    axis.set_title(f"{case}  ({unit(rows[0].metric)})", loc="left", fontsize=8)
    for place, median, above in zip(places, medians, highs, strict=True):
        axis.text(
            median + above, place, f"  {median:,.0f}" if median >= 100 else f"  {median:.3g}", va="center", fontsize=7
        )
    axis.margins(x=0.15)
    axis.set_xlim(left=0)
    axis.spines[["top", "right"]].set_visible(False)
