"""A compacted topic as a table, joined to a stream: each flight with the plane that flies it.

The last record of each key is the table's row, and one without a value removes it. Spark reads the table again for
every micro-batch, so a flight meets the planes as they are when its batch runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from examples.pipelines.place import Place
from examples.pipelines.values import FLIGHT, PLANE, parsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "flown"
ROW: Final = "row bigint, tailnum string, manufacturer string, seats bigint"
NAMES: Final = [column.split()[0] for column in ROW.split(", ")]


def current(records: DataFrame) -> DataFrame:
    """Return the last record of each key, but for keys whose last record has no value."""
    from pyspark.sql import functions as f

    last = f.max_by(f.struct("value", "timestamp"), "offset").alias("last")
    return records.groupBy("key").agg(last).select("key", "last.*").where("value is not null")


def with_planes(flights: DataFrame, planes: DataFrame) -> DataFrame:
    """Join parsed flights with the table; flights of unknown planes remain, without a manufacturer and seats."""
    return flights.join(planes.select("tailnum", "manufacturer", "seats"), "tailnum", "left")


def start(place: Place, flights: str, planes: str) -> StreamingQuery:
    """Process what the topic holds now, from where the last run ended; returns the running query."""
    from pyspark.sql import functions as f

    table = parsed(current(place.table(planes)), PLANE)
    rows = with_planes(parsed(place.stream(flights), FLIGHT), table)
    records = rows.select(f.col("tailnum").alias("key"), f.to_json(f.struct(*NAMES)).alias("value"), f.col("timestamp"))
    return place.sink(records, TOPIC).trigger(availableNow=True).start()
