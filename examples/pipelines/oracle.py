"""What the pipelines should find, by pandas over the files. Each answer is a frame, sorted by its first columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from examples.pipelines import delays, fleet, forecast, history, rotations
from examples.pipelines.data import HOUR_MS, Tables
from examples.pipelines.model import CATEGORIES, NUMBERS, LeastSquares, predict

if TYPE_CHECKING:
    from collections.abc import Sequence


def delays_by_hour(tables: Tables) -> pd.DataFrame:
    """Airport, hour, flights and weather, for the hours that the watermark of both streams has passed."""
    flights, weather = tables.flights, tables.weather
    watermark_ms = min(flights["at_ms"].max(), weather["at_ms"].max()) - delays.LATENESS_MS
    hour_ms = flights["at_ms"] // HOUR_MS * HOUR_MS
    joined = flights.assign(hour_ms=hour_ms).merge(
        weather.rename(columns={"at_ms": "hour_ms"}), on=["origin", "hour_ms"], validate="many_to_one"
    )
    joined = joined[joined["hour_ms"] + HOUR_MS <= watermark_ms]
    by = ["origin", "hour_ms", "wind_speed", "visib", "precip"]
    sums = joined.groupby(by, dropna=False).agg(
        flights=("row", "size"), departed=("dep_delay", "count"), delay_sum=("dep_delay", lambda x: x.sum(min_count=1))
    )
    return ordered(sums.reset_index(), _names(delays.ROW))


def rotations_of_aircraft(tables: Tables) -> pd.DataFrame:
    """Each aircraft's runs of departures within a day of each other, without those that may still go on."""
    flights = tables.flights[tables.flights["tailnum"].notna()].sort_values(["tailnum", "at_ms"], kind="stable")
    watermark_ms = flights["at_ms"].max() - rotations.LATENESS_MS
    since_ms = flights.groupby("tailnum")["at_ms"].diff()
    run = (since_ms.isna() | (since_ms > rotations.GAP_MS)).cumsum().rename("run")
    found = flights.groupby(["tailnum", run]).agg(
        began_ms=("at_ms", "min"), ended_ms=("at_ms", "max"), flights=("row", "size"), distance=("distance", "sum")
    )
    found = found.reset_index().drop(columns="run")
    is_last = ~found.duplicated("tailnum", keep="last")
    still_open = is_last & (found["ended_ms"] + rotations.GAP_MS > watermark_ms)
    return ordered(found[~still_open], _names(rotations.ROW))


def planes_first(tables: Tables) -> pd.DataFrame:
    """The planes as the table holds them for the first chunk: seats are known to the nearest ten below only."""
    return tables.planes.assign(seats=tables.planes["seats"] // 10 * 10)


def retired(tables: Tables) -> pd.DataFrame:
    """The planes that are removed from the table after the first chunk: every tenth."""
    return tables.planes.iloc[::10]


def flights_with_planes(tables: Tables, chunks: int) -> pd.DataFrame:
    """Each flight with its plane: those of the first chunk with the first table, all others with the second."""
    first, *_ = tables.chunks(chunks)
    planes = tables.planes[~tables.planes["tailnum"].isin(retired(tables)["tailnum"])]
    early = first[0].merge(planes_first(tables), on="tailnum", how="left")
    later = tables.flights.iloc[len(early) :].merge(planes, on="tailnum", how="left")
    return ordered(pd.concat([early, later]), _names(fleet.ROW))


def history_of_flights(tables: Tables) -> pd.DataFrame:
    """Each flight once, without the places where the topic holds it."""
    names = [name for name in _names(history.ROW) if not name.startswith("source_")]
    return ordered(tables.flights.assign(hour=tables.flights["at_ms"] // HOUR_MS % 24), names)


def forecast_errors(tables: Tables) -> tuple[forecast.Errors, pd.DataFrame]:
    """Train on the files; returns the errors, and the prediction for each flight that was kept back."""
    flights = tables.flights.assign(hour=tables.flights["at_ms"] // HOUR_MS % 24).dropna(
        subset=["dep_delay", "arr_delay"]
    )
    columns = {name: flights[name].to_numpy() for name in ("row", *CATEGORIES, *NUMBERS)}
    columns |= {name: flights[name].to_numpy(dtype=np.int64) for name in ("dep_delay", "arr_delay")}
    test = forecast.is_kept_back(columns)
    model = LeastSquares()
    model.add({name: values[~test] for name, values in columns.items()})
    kept = flights[test].assign(
        predicted=predict(model.weights(), {name: values[test] for name, values in columns.items()})
    )
    return forecast.errors(model, [columns]), kept[["row", "predicted", "arr_delay"]].reset_index(drop=True)


def differing(found: pd.DataFrame, expected: pd.DataFrame) -> int:
    """Count rows that are missing, superfluous or repeated; the columns are those of ``expected``."""
    names = list(expected.columns)
    rows, wanted = (Counter(_plain(frame, names).itertuples(index=False, name=None)) for frame in (found, expected))
    return (rows - wanted).total() + (wanted - rows).total()


def ordered(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the columns in this order, plain types, sorted, so that two frames can be compared."""
    return _plain(frame, names).sort_values(list(names)).reset_index(drop=True)


def _plain(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the columns as Python's objects, None where a value is missing."""
    plain = frame[list(names)].convert_dtypes().astype(dict.fromkeys(names, object))
    return plain.where(plain.notna(), None)


def _names(row: str) -> list[str]:
    return [column.split()[0] for column in row.split(", ")]
