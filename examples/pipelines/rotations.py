"""Sessions of each aircraft: departures from New York that follow each other within a day are one rotation.

State of one's own, where ``session_window`` has aggregates: ``transformWithStateInPandas`` keeps the open rotation of
each tail number in RocksDB. A later departure extends it or, after a longer gap, closes it; where none comes, a timer
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from examples.pipelines.place import Place
from examples.pipelines.values import FLIGHT, parsed

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "rotations"
GAP_MS: Final = 24 * 3_600_000
LATENESS_MS: Final = 2 * 3_600_000
LATENESS: Final = "2 hours"
OPEN: Final = "began_ms bigint, ended_ms bigint, flights bigint, distance bigint"
ROW: Final = f"tailnum string, {OPEN}"
NAMES: Final = [column.split()[0] for column in ROW.split(", ")]
STORE: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""Setting of the session: the state store that ``transformWithState`` requires. Its library comes with Spark."""


Rotation = tuple[int, int, int, int]
"""First and last departure in ms, number of flights, miles: the columns of OPEN."""


def extend(current: Rotation | None, flights: Iterable[tuple[int, int]]) -> tuple[list[Rotation], Rotation | None]:
    """Add departures (time in ms, miles) in time order; returns the rotations that a gap closed, and the open one."""
    closed: list[Rotation] = []
    for at_ms, distance in flights:
        if current is not None and at_ms - current[1] > GAP_MS:
            closed.append(current)
            current = None
        began_ms, _, count, miles = current or (at_ms, at_ms, 0, 0)
        current = (began_ms, at_ms, count + 1, miles + distance)
    return closed, current


class Rotations(StatefulProcessor):
    """The open rotation of one aircraft, as a state of Spark's. Runs in Spark's Python workers."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state; called once for each batch and task."""
        self._handle = handle
        self._open = handle.getValueState("open", OPEN)

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        """Extend the rotation by the flights of this batch; yield those that a gap has closed."""
        import pandas as pd

        flights = pd.concat(list(rows)).sort_values("at_ms")
        before = self._open.get()
        departures = zip(flights["at_ms"].tolist(), flights["distance"].tolist(), strict=True)
        closed, current = extend(None if before is None else tuple(before), departures)
        if before is not None:
            self._handle.deleteTimer(before[1] + GAP_MS)
        if current is not None:
            self._handle.registerTimer(current[1] + GAP_MS)
            self._open.update(current)
        yield self._finished(key, closed)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,
        expiredTimerInfo: Any,
    ) -> Iterator[pd.DataFrame]:
        """Close the rotation: its aircraft has not departed for longer than the gap."""
        current = self._open.get()
        self._open.clear()
        yield self._finished(key, [] if current is None else [tuple(current)])

    def close(self) -> None:
        """Nothing is held beyond a batch."""

    def _finished(self, key: Any, closed: list[Rotation]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame([(key[0], *rotation) for rotation in closed], columns=NAMES)


def rotations(flights: DataFrame) -> DataFrame:
    """Return the closed rotations of a stream of parsed flights."""
    from pyspark.sql import functions as f

    known = flights.where("tailnum is not null").withWatermark("timestamp", LATENESS)
    rows = known.select("timestamp", "tailnum", "distance", f.unix_millis("timestamp").alias("at_ms"))
    return rows.groupBy("tailnum").transformWithStateInPandas(
        Rotations(), outputStructType=ROW, outputMode="Append", timeMode="EventTime"
    )


def start(place: Place, flights: str) -> StreamingQuery:
    """Process what the topic holds now, from where the last run ended; returns the running query."""
    from pyspark.sql import functions as f

    rows = rotations(parsed(place.stream(flights), FLIGHT))
    records = rows.select(f.col("tailnum").alias("key"), f.to_json(f.struct(*NAMES)).alias("value"))
    return place.sink(records, TOPIC).trigger(availableNow=True).start()
