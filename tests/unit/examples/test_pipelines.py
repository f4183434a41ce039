"""The parts of the pipelines that need no cluster: sessions, the model, the comparison with pandas, the pictures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.pipelines import data, figures, forecast, model, oracle, plots, rotations

HOUR = rotations.GAP_MS // 24


def frame(flights: list[tuple[int, str | None, str]]) -> pd.DataFrame:
    """Flights from (minute, tail number, airport), in this order."""
    rows = [
        {
            "at_ms": minute * 60_000,
            "row": row,
            "carrier": "UA",
            "tailnum": tail,
            "origin": origin,
            "dest": "IAH",
            "distance": 100 + row,
            "dep_delay": None if tail is None else row % 7,
            "arr_delay": None if tail is None else row % 5,
        }
        for row, (minute, tail, origin) in enumerate(flights)
    ]
    return pd.DataFrame(rows, columns=["at_ms", *data.FLIGHT]).astype(data.WHOLE)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 9)), max_size=20), st.lists(st.integers(0, 20), max_size=4)
)
def test_rotations_do_not_depend_on_where_batches_end(flights: list[tuple[int, int]], cuts: list[int]) -> None:
    departures = sorted((hour * HOUR, miles) for hour, miles in flights)
    whole, left = rotations.extend(None, departures)
    pieces: list[rotations.Rotation] = []
    current: rotations.Rotation | None = None
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(departures)], strict=True):
        closed, current = rotations.extend(current, departures[begin:end])
        pieces += closed
    assert (pieces, current) == (whole, left)
    everything = [*whole, *([] if left is None else [left])]
    assert sum(count for _, _, count, _ in everything) == len(flights)
    assert sum(miles for *_, miles in everything) == sum(miles for _, miles in flights)
    assert all(after[0] - before[1] > rotations.GAP_MS for before, after in pairwise(everything))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 5))
def test_chunks_hold_every_flight_once_and_none_of_the_future(minutes: list[int], count: int) -> None:
    flights = frame([(minute, "N1", "JFK") for minute in sorted(minutes)])
    weather = pd.DataFrame({"at_ms": [minute * 60_000 for minute in range(0, 31, 3)]})
    pieces = list(data.Tables(flights, weather, pd.DataFrame()).chunks(count))
    assert [row for piece, _ in pieces for row in piece["row"]] == flights["row"].tolist()
    assert sum(len(piece) for _, piece in pieces) == len(weather)
    for (before, reports), (after, _) in pairwise(pieces):
        if len(before) and len(after):
            assert before["at_ms"].max() < after["at_ms"].min()
            assert not len(reports) or reports["at_ms"].max() <= before["at_ms"].max()


def test_a_comparison_counts_what_is_missing_repeated_or_changed() -> None:
    expected = pd.DataFrame({"origin": ["EWR", "JFK", None], "flights": [1, 2, 3]})
    assert oracle.differing(expected.iloc[::-1].astype({"flights": float}), expected) == 0
    assert oracle.differing(expected.iloc[1:], expected) == 1
    assert oracle.differing(pd.concat([expected, expected.iloc[:1]]), expected) == 1
    assert oracle.differing(expected.assign(flights=[1, 2, 4]), expected) == 2


def test_records_hold_whole_minutes_and_unknown_aircraft_no_key() -> None:
    known, unknown = data.flight_records(frame([(1, "N1", "JFK"), (2, None, "EWR")]))
    assert (known[0], known[2]) == (b"N1", 60_000)
    assert json.loads(known[1] or b"")["dep_delay"] == 0
    assert unknown[0] is None
    assert json.loads(unknown[1] or b"")["dep_delay"] is None


def test_the_model_finds_the_line_that_the_flights_lie_on() -> None:
    chance = np.random.default_rng(7)
    count = 2_000
    columns = {name: chance.choice(["a", "b", "c"], count) for name in model.CATEGORIES}
    columns |= {"dep_delay": chance.integers(-5, 60, count), "distance": chance.integers(100, 3_000, count)}
    columns["arr_delay"] = 1.5 * columns["dep_delay"] - 0.004 * columns["distance"] + 9 * (columns["dest"] == "b")
    learned = model.LeastSquares()
    for rows in np.array_split(np.arange(count), 7):
        learned.add({name: values[rows] for name, values in columns.items()})
    assert learned.mean() == pytest.approx(columns["arr_delay"].mean())
    assert model.rmse(model.predict(learned.weights(), columns), columns["arr_delay"]) < 0.2


def test_figures_add_up_the_runs_of_a_query() -> None:
    found = figures.Figures({"delays": figures.Work()})
    idle = {"numInputRows": 0, "durationMs": {"triggerExecution": 250}}
    for rows in (1_000, 500):
        found.works["delays"].add([{"numInputRows": rows, "durationMs": {"triggerExecution": 1_000}}, idle])
    assert list(found.rows()) == [("delays", "2", "2", "1,500", "2.5")]
    assert len(found.table().columns) == len(next(found.rows()))


def test_the_pictures_are_the_same_for_the_same_results(tmp_path: Path) -> None:
    hours = pd.DataFrame(
        {
            "hour_ms": [0, HOUR],
            "origin": ["EWR", "JFK"],
            "visib": [10.0, 0.5],
            "departed": [40, 50],
            "delay_sum": [80, 9],
        }
    )
    runs = pd.DataFrame({"flights": [1, 1, 2, 30]})
    predicted = pd.DataFrame({"predicted": [1.0, 90.0], "arr_delay": [2, 3]})
    for folder in ("once", "again"):
        plots.draw(tmp_path / folder, hours, runs, predicted, forecast.Errors(2, 1.0, 3.0, 2.0))
    for name in ("delays.svg", "forecast.svg"):
        first, second = ((tmp_path / folder / name).read_text() for folder in ("once", "again"))
        assert "<svg" in first
        assert first == second
        assert (tmp_path / "once" / name).with_suffix(".png").read_bytes().startswith(b"\x89PNG")
