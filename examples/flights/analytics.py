"""Two queries on Spark on Ray, which reads the topic's partitions directly, and the same on pandas from the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import raylog
from examples.flights.checks import Checks
from examples.flights.data import Flights
from examples.flights.screen import step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "row bigint, day string, carrier string, dep_delay double"
BY_CARRIER = """
    SELECT carrier, count(*) AS flights, round(avg(dep_delay), 3) AS mean_delay
    FROM flights GROUP BY carrier ORDER BY flights DESC, carrier
"""
WORST_DAYS = """
    SELECT day, count(*) AS flights, round(avg(dep_delay), 3) AS mean_delay
    FROM flights GROUP BY day ORDER BY mean_delay DESC, day LIMIT 10
"""

QUIET = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}

Answer = list[tuple[str, int, float]]


def compare(console: Console, checks: Checks, topic: str, flights: Flights) -> None:
    """Run both, show the results as tables, and check that they agree."""
    with step(console, "Starting Spark on Ray"):
        spark = raylog.spark.session("flights", num_executors=1, executor_memory="1g", config=QUIET)
    try:
        with step(console, "Two SQL questions"):
            by_carrier, worst_days = _query_spark(spark, topic)
    finally:
        raylog.spark.stop()
    console.print(_table("Flights and mean departure delay by carrier", "carrier", by_carrier))
    console.print(_table("The ten worst days", "day", worst_days))
    checks.equal("by carrier: Spark agrees with pandas", by_carrier == _by_carrier(flights), True)
    checks.equal("worst days: Spark agrees with pandas", worst_days == _worst_days(flights), True)


def _query_spark(spark: SparkSession, topic: str) -> tuple[Answer, Answer]:
    from pyspark.sql.functions import col, from_json

    source = spark.read.format("raylog").option("subscribe", topic).load()
    parsed = source.select(from_json(col("value").cast("string"), SCHEMA).alias("flight")).select("flight.*")
    parsed.cache().createOrReplaceTempView("flights")
    by_carrier = [tuple(row) for row in spark.sql(BY_CARRIER).collect()]
    worst_days = [tuple(row) for row in spark.sql(WORST_DAYS).collect()]
    return by_carrier, worst_days


def _by_carrier(flights: Flights) -> Answer:
    grouped = flights.frame.groupby("carrier")["dep_delay"].agg(["size", "mean"]).reset_index()
    grouped["mean"] = grouped["mean"].round(3)
    grouped = grouped.sort_values(["size", "carrier"], ascending=[False, True])
    return [(str(name), int(size), float(mean)) for name, size, mean in grouped.itertuples(index=False)]


def _worst_days(flights: Flights) -> Answer:
    grouped = flights.frame.groupby("day")["dep_delay"].agg(["size", "mean"]).reset_index()
    grouped["mean"] = grouped["mean"].round(3)
    grouped = grouped.sort_values(["mean", "day"], ascending=[False, True]).head(10)
    return [(str(day), int(size), float(mean)) for day, size, mean in grouped.itertuples(index=False)]


def _table(title: str, first: str, answer: Answer) -> Table:
    table = Table(title=title)
    table.add_column(first)
    table.add_column("flights", justify="right")
    table.add_column("mean delay (min)", justify="right")
    for name, count, mean in answer:
        table.add_row(name, f"{count:,}", f"{mean:.2f}")
    return table
