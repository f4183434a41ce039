"""The picture of a day: states of the partitions over the hours, CPU and memory below; SVG, by matplotlib.

`python -m benchmarks.rest.day.picture RESULTS.json` copies a run to docs/day.json and draws docs/img/day.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.job import Outcome
from benchmarks.optional import module
from benchmarks.report.plots import OURS, THEIRS
from benchmarks.report.results import Results

DOCS = Path(__file__).resolve().parents[3] / "docs"
DOZING, ASLEEP = "#7fb2d9", "#e4e9ec"
HOURS = range(0, 25, 3)


def draw(results: Results, path: Path) -> None:
    """Draw a run's samples. Raises Missing without matplotlib, ValueError without samples."""
    matplotlib = module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "raylog", "font.size": 8, "svg.fonttype": "none"})
    plotting = module("matplotlib.pyplot")
    samples = samples_of(results)
    figure, axes = plotting.subplots(
        3, 1, figsize=(7, 5.5), sharex=True, layout="constrained", gridspec_kw={"height_ratios": (3, 2, 1.4)}
    )
    hours = [sample["hour"] for sample in samples]
    _stacked(
        axes[0], hours, samples, (("awake", OURS), ("dozing", DOZING), ("asleep", ASLEEP)),
        f"{results.settings['partitions']:,} partitions, by state",
    )  # fmt: skip
    _stacked(
        axes[1], hours, samples, (("cpu_cores", OURS), ("ray_cpu_cores", THEIRS)),
        f"CPU in cores; the day took {results.settings['minutes']:g} minutes",
    )  # fmt: skip
    _stacked(axes[2], hours, samples, (("memory_mb", OURS), ("ray_memory_mb", THEIRS)), "memory in MB")
    axes[2].set_xticks(list(HOURS), [f"{hour}:00" for hour in HOURS])
    axes[2].set_xlim(0, 24)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plotting.close(figure)


def samples_of(results: Results) -> Sequence[Outcome]:
    """The samples of the day; ValueError when there are none."""
    for row in results.measured:
        if row.rounds and "hour" in row.rounds[0]:
            return row.rounds
    raise ValueError("this run has no samples of a day")


LABELS = {
    "cpu_cores": "Raylog", "ray_cpu_cores": "Ray's own processes",
    "memory_mb": "Raylog", "ray_memory_mb": "Ray's own processes",
}  # fmt: skip


def _stacked(
    axis: Any, hours: Sequence[float], samples: Sequence[Outcome], layers: Sequence[tuple[str, str]], title: str
) -> None:
    lines = [[float(sample.get(name, 0.0)) for sample in samples] for name, _ in layers]
    axis.stackplot(
        hours, lines, colors=[colour for _, colour in layers], labels=[LABELS.get(name, name) for name, _ in layers]
    )
    axis.set_title(title, loc="left", fontsize=8)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False, ncols=len(layers), loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def main() -> None:
    """Copy the data and draw the picture."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.rest.day.picture RESULTS.json")
    results = Results.read(Path(sys.argv[1]))
    results.write(DOCS / "day.json")
    draw(results, DOCS / "img" / "day.svg")
    print("Wrote docs/day.json and docs/img/day.svg.")


if __name__ == "__main__":
    main()
