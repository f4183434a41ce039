"""Plots of a run: one per scenario, bars beside each other; SVG, by matplotlib, made small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.optional import module
from benchmarks.report.results import RAYLOG, Measured, Results
from benchmarks.report.tables import unit
from tools.pictures import small

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
    made = []
    for scenario, figure in figures.items():
        path = folder / f"{scenario}.svg"
        figure.savefig(path, metadata={"Date": None})
        path.write_text(small(path.read_text(encoding="utf-8")), encoding="utf-8")
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
