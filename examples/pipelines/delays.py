"""Flights joined with the hourly weather: delays for each airport and hour, to a topic and to Parquet.

Two streams, joined by airport and event-time window. Spark keeps an hour in its state until the watermark of both
streams has passed the hour's end; then its row is final, is written once, and its state is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from examples.pipelines.place import Place
from examples.pipelines.values import FLIGHT, WEATHER, parsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "delays"
PARQUET: Final = "delays.parquet"
LATENESS_MS: Final = 2 * 3_600_000
LATENESS: Final = "2 hours"
"""How much later than the newest record of its topic a record may come and still be counted."""
ROW: Final = (
    "origin string, hour_ms bigint, flights bigint, departed bigint, delay_sum bigint, "
    "wind_speed double, visib double, precip double"
)


def by_hour(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Join two streams of parsed rows and sum up each airport's hours."""
    from pyspark.sql import functions as f

    hour = f.window("timestamp", "1 hour").alias("hour")
    departures = flights.withWatermark("timestamp", LATENESS).select(hour, "origin", "dep_delay")
    reports = weather.withWatermark("timestamp", LATENESS).select(hour, "origin", "wind_speed", "visib", "precip")
    hours = departures.join(reports, ["hour", "origin"]).groupBy("hour", "origin", "wind_speed", "visib", "precip")
    sums = hours.agg(
        f.count("*").alias("flights"), f.count("dep_delay").alias("departed"), f.sum("dep_delay").alias("delay_sum")
    )
    return sums.withColumn("hour_ms", f.unix_millis("hour.start"))


def start(place: Place, flights: str, weather: str) -> StreamingQuery:
    """Process what both topics hold now, from where the last run ended; returns the running query."""
    from pyspark.sql import functions as f

    rows = by_hour(parsed(place.stream(flights), FLIGHT), parsed(place.stream(weather), WEATHER))
    names = [column.split()[0] for column in ROW.split(", ")]
    records = rows.select(
        f.col("origin").alias("key"),
        f.to_json(f.struct(*names)).alias("value"),
        f.col("hour.start").alias("timestamp"),
    )
    return place.sink(records, TOPIC).trigger(availableNow=True).start()


def start_parquet(place: Place) -> StreamingQuery:
    """Copy the new hours of the topic into Parquet files; each committed hour occurs once in them."""
    rows = parsed(place.stream(TOPIC), ROW).drop("timestamp")
    writer = rows.writeStream.format("parquet").queryName(PARQUET)
    writer = writer.options(checkpointLocation=str(place.checkpoint(PARQUET)), path=str(place.folder / PARQUET))
    return writer.trigger(availableNow=True).start()
