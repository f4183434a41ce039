"""Pictures of the results, as SVG and PNG: delays by hour and weather, rotations, the forecast's errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from examples.pipelines.forecast import Errors

ZONE: Final = "America/New_York"
COLOURS: Final = {"EWR": "#4477aa", "JFK": "#cc6677", "LGA": "#228833"}
GREY: Final = "#8a949b"
VISIBILITY: Final = ((0.0, 1.0), (1.0, 3.0), (3.0, 6.0), (6.0, 9.99), (9.99, 11.0))
"""Bounds in miles; reports end at ten miles."""
NAMES: Final = ("below 1", "1 to 3", "3 to 6", "6 to 10", "10")
LEAST: Final = 30
"""Flights that a mean needs to be drawn."""
PNG_DPI: Final = 150
ERROR_BOUND: Final = 60
"""Minutes of error that the histogram shows to either side."""


def draw(folder: Path, hours: pd.DataFrame, rotations: pd.DataFrame, predicted: pd.DataFrame, errors: Errors) -> None:
    """Write the pictures into a folder, which is made when it does not exist."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "raylog", "font.size": 8, "svg.fonttype": "none"})
    folder.mkdir(parents=True, exist_ok=True)
    _draw(folder, "delays", lambda axes: _delays(axes, hours))
    _draw(folder, "forecast", lambda axes: _forecast(axes, rotations, predicted, errors))


def _draw(folder: Path, name: str, fill: Any) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    fill(axes)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=PNG_DPI)
    plt.close(figure)


def _delays(axes: Any, hours: pd.DataFrame) -> None:
    """Mean departure delay by hour of the day, and by visibility, for each airport."""
    moments = pd.to_datetime(hours["hour_ms"], unit="ms", utc=True).dt.tz_convert(ZONE)
    edges = [low for low, _ in VISIBILITY] + [VISIBILITY[-1][1]]
    known = hours.assign(
        hour=moments.dt.hour, sight=pd.cut(hours["visib"].astype(float), edges, right=False, labels=NAMES)
    )
    for airport, colour in COLOURS.items():
        rows = known[known["origin"] == airport]
        by_hour, by_sight = _means(rows, "hour"), _means(rows, "sight")
        axes[0].plot(by_hour.index, by_hour, color=colour, marker=".", label=airport)
        axes[1].plot(by_sight.index.astype(str), by_sight, color=colour, marker="o", label=airport)
    axes[0].set(xlabel="scheduled hour of departure", ylabel="mean departure delay (min)", xticks=range(5, 24, 3))
    axes[1].set(xlabel="visibility at the airport (miles)")
    axes[0].legend(frameon=False)


def _means(rows: pd.DataFrame, by: str) -> pd.Series:
    sums = rows.groupby(by, observed=True)[["delay_sum", "departed"]].sum()
    sums = sums[sums["departed"] >= LEAST]
    return sums["delay_sum"] / sums["departed"]


def _forecast(axes: Any, rotations: pd.DataFrame, predicted: pd.DataFrame, errors: Errors) -> None:
    """Departures in a rotation; and the errors of the model's predictions, with those of the two baselines."""
    counts = rotations["flights"].clip(upper=15).value_counts().sort_index()
    axes[0].bar(counts.index, counts, color=COLOURS["EWR"])
    axes[0].set(xlabel="departures in a rotation (15: or more)", ylabel="rotations", yscale="log")
    wrong = (predicted["predicted"] - predicted["arr_delay"]).to_numpy(dtype=float)
    axes[1].hist(np.clip(wrong, -ERROR_BOUND, ERROR_BOUND), bins=60, color=COLOURS["EWR"])
    text = (
        "root mean squared\nerror (min)\n\n"
        f"model {errors.model:.1f}\ndeparture delay {errors.departure:.1f}\nmean {errors.mean:.1f}"
    )
    axes[1].text(0.02, 0.97, text, transform=axes[1].transAxes, va="top", color=GREY)
    axes[1].set(xlabel="predicted minus actual arrival delay (min)", ylabel="flights")
