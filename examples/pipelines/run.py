"""All pipelines over the same topics, chunk by chunk: queries end and start again, and actors are killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from examples.flights.checks import Checks
from examples.pipelines import data, delays, fleet, forecast, history, oracle, rotations
from examples.pipelines.figures import Figures
from examples.pipelines.kills import Kills
from examples.pipelines.place import Place, make_topics, read_rows, send, wait_until_done, wait_until_started
from examples.pipelines.values import parsed

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS: Final = "flights"
WEATHER: Final = "weather"
PLANES: Final = "planes"
RESULTS: Final = (delays.TOPIC, rotations.TOPIC, fleet.TOPIC, history.TOPIC, history.FOLLOWED, forecast.TOPIC)

CUT_SHARE: Final = 0.8
"""History ends inside the first chunk, so that the stream's first records are there before it starts."""

Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Size:
    """How much of the year, in how many chunks, and how the topics are laid out."""

    limit: int | None = None
    chunks: int = 4
    partitions: int = 3
    replication: int = 3
    batch: int = 50_000
    """Records in a micro-batch of the query that reads history and live records alike."""
    at_once: int = 2
    """Queries that run side by side: each has several processes, which Spark does not wait for long."""


@dataclass(slots=True)
class Run:
    """One run of all pipelines, with what it found."""

    place: Place
    kills: Kills
    checks: Checks
    step: Step
    tables: data.Tables
    size: Size
    cut: history.Offsets = field(default_factory=dict)
    hours: pd.DataFrame = field(default_factory=pd.DataFrame)
    rotations: pd.DataFrame = field(default_factory=pd.DataFrame)
    predicted: pd.DataFrame = field(default_factory=pd.DataFrame)
    errors: forecast.Errors = forecast.NO_ERRORS
    figures: Figures = field(default_factory=Figures)

    def all(self) -> None:
        """Feed the chunks, run every pipeline on each, and check the results."""
        self.prepare()
        for number, (flights, weather) in enumerate(self.tables.chunks(self.size.chunks)):
            last = number == self.size.chunks - 1
            self._feed(number, flights, weather)
            with self.step(f"Chunk {number + 1} of {self.size.chunks}: {len(flights):,} flights"):
                self._process(number, is_last=last)
        with self.step("Ray Data reads what Spark wrote, trains, and writes predictions"), self._killing(history.TOPIC):
            self.errors = forecast.run()
        self.check()

    def prepare(self) -> None:
        """Create the topics, and send the first table of planes."""
        with self.step("Creating the topics"):
            sources = {FLIGHTS: self.size.partitions, WEATHER: 1, PLANES: 1}
            make_topics(self.size.replication, sources | dict.fromkeys(RESULTS, 1), compacted=[PLANES])
            send(PLANES, data.plane_records(oracle.planes_first(self.tables)))

    def _feed(self, number: int, flights: pd.DataFrame, weather: pd.DataFrame) -> None:
        """Send a chunk. The last one arrives while a query follows the topic."""
        if number == 1:
            send(PLANES, data.plane_records(self.tables.planes))
            send(PLANES, ((key, None, None) for key, _, _ in data.plane_records(oracle.retired(self.tables))))
        follows = number == self.size.chunks - 1
        with self.step("Sending a chunk" + (" to a query that follows" if follows else "")), self._killing(FLIGHTS):
            query = history.follow(self.place, FLIGHTS, self.size.batch) if follows else None
            try:
                sent = send(FLIGHTS, data.flight_records(flights))
                sent += send(WEATHER, data.weather_records(weather))
                self.checks.equal(f"records of chunk {number + 1} acknowledged", sent, len(flights) + len(weather))
                if query is not None:
                    history.wait_until_caught_up(query, FLIGHTS)
            finally:
                if query is not None:
                    query.stop()
                    self.figures.add(query)

    def _process(self, number: int, *, is_last: bool) -> None:
        """Run the queries, some side by side, while actors are killed; then the one that reads a result."""
        place = self.place
        starts: list[Callable[[], StreamingQuery]] = [
            lambda: delays.start(place, FLIGHTS, WEATHER),
            lambda: rotations.start(place, FLIGHTS),
            lambda: fleet.start(place, FLIGHTS, PLANES),
            lambda: history.start_live(place, FLIGHTS, self.cut),
        ]
        if not is_last:
            starts.append(lambda: history.start_all(place, FLIGHTS, self.size.batch))
        with self._killing(FLIGHTS, delays.TOPIC, history.TOPIC), ExitStack() as stack:
            if number == 0:
                self.cut = history.choose_cut(FLIGHTS, CUT_SHARE)
                history.backfill(place, FLIGHTS, self.cut)
            running: list[StreamingQuery] = []
            for start in starts:
                if len(running) == self.size.at_once:
                    self._finish(running.pop(0))
                running.append(start())
                stack.callback(running[-1].stop)
                wait_until_started(running[-1])
            for query in running:
                self._finish(query)
            self._finish(delays.start_parquet(place))

    def _finish(self, query: StreamingQuery) -> None:
        wait_until_done(query)
        self.figures.add(query)

    def _killing(self, *topics: str) -> AbstractContextManager[None]:
        return self.kills.during(topics)

    def check(self) -> None:
        """Compare every result with pandas over the files."""
        with self.step("Comparing with pandas"):
            self._check_delays()
            self._check_others()
            self._check_forecast()
            self.checks.equal("actors were killed meanwhile", len(self.kills.done) >= self.size.chunks, True)

    def _check_delays(self) -> None:
        expected = oracle.delays_by_hour(self.tables)
        self.hours = read_rows(delays.TOPIC)
        stored = self.place.spark.read.parquet(str(self.place.folder / delays.PARQUET)).toPandas()
        self.checks.equal("airports' hours in the topic", len(self.hours), len(expected))
        self.checks.equal("hours in the topic that pandas disagrees with", oracle.differing(self.hours, expected), 0)
        self.checks.equal("hours in Parquet that pandas disagrees with", oracle.differing(stored, expected), 0)

    def _check_others(self) -> None:
        expected = oracle.rotations_of_aircraft(self.tables)
        self.rotations = read_rows(rotations.TOPIC)
        self.checks.equal("rotations of aircraft", len(self.rotations), len(expected))
        self.checks.equal("rotations that pandas disagrees with", oracle.differing(self.rotations, expected), 0)
        planes = oracle.flights_with_planes(self.tables, self.size.chunks)
        flown = read_rows(fleet.TOPIC)
        self.checks.equal("flights with the plane they had at the time", len(flown), len(planes))
        self.checks.equal("flights whose plane differs", oracle.differing(flown, planes), 0)
        flights = oracle.history_of_flights(self.tables)
        for topic, how in ((history.TOPIC, "backfill, then live"), (history.FOLLOWED, "one stream")):
            rows = read_rows(topic)
            places = rows[["source_partition", "source_offset"]]
            self.checks.equal(f"flights ({how})", len(places.drop_duplicates()), len(flights))
            self.checks.equal(f"flights missing or repeated ({how})", oracle.differing(rows, flights), 0)

    def _check_forecast(self) -> None:
        expected, predicted = oracle.forecast_errors(self.tables)
        written = self.place.table(forecast.TOPIC)
        rows: pd.DataFrame = parsed(written, forecast.ROW).toPandas()
        found = rows.sort_values("row").reset_index(drop=True)
        self.predicted = found
        self.checks.equal("predictions read back by Spark", found["row"].tolist() == predicted["row"].tolist(), True)
        apart = np.abs(found["predicted"].to_numpy() - predicted["predicted"].to_numpy(dtype=float)).max()
        self.checks.equal("predictions as trained on the files, to a millionth", bool(apart < 1e-6), True)
        self.checks.equal("flights in the test of the model", self.errors.flights, expected.flights)
        better = self.errors.model < min(self.errors.mean, self.errors.departure)
        self.checks.equal("the model's error is less than that of the baselines", better, True)
