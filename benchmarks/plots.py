"""Plots of a run: one picture a scenario, SVG, made with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.optional import module
from benchmarks.results import RAYLOG, Measured, Results
from benchmarks.tables import unit

OURS, THEIRS = "#1b6ca8", "#9aa5ad"
PLOTTED = ("produce", "consume", "latency", "small", "failover", "limits")
BAR_INCHES = 0.24


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw what there is; returns the pictures. Raises Missing without matplotlib."""
    matplotlib = module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "raylog", "font.size": 8, "svg.fonttype": "none"})
    plotting = module("matplotlib.pyplot")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for scenario in PLOTTED:
        cases = [
            (case, rows) for name, case, rows in results.cases() if name == scenario and any(r.rounds for r in rows)
        ]
        if not cases:
            continue
        heights = [1 + len([row for row in rows if row.rounds]) for _, rows in cases]
        figure, axes = plotting.subplots(
            len(cases), 1, figsize=(7, BAR_INCHES * sum(heights) + 0.5 * len(cases)), squeeze=False,
            gridspec_kw={"height_ratios": heights}, layout="constrained",
        )  # fmt: skip
        for axis, (case, rows) in zip(axes[:, 0], cases, strict=True):
            _bars(axis, case, [row for row in rows if row.rounds])
        path = folder / f"{scenario}.svg"
        figure.savefig(path, metadata={"Date": None})
        plotting.close(figure)
        made.append(path)
    return made


def _bars(axis: Any, case: str, rows: list[Measured]) -> None:
    summaries = [row.summary() for row in rows]
    medians = [one.median if one else 0.0 for one in summaries]
    lows = [one.median - one.low if one else 0.0 for one in summaries]
    highs = [one.high - one.median if one else 0.0 for one in summaries]
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
