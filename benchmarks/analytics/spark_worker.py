"""A Spark on two cores of this machine, which measures what it is given: reads, streams and writes.

One JVM serves all contestants of a row in turn, so that they share its warmth. Run by `workers.Worker`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.analytics import spark_streams
from benchmarks.analytics.workers import Phase, Task, serve
from benchmarks.job import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "3g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


def session(jars: list[str]) -> SparkSession:
    """A session on two cores, with the sources of Raylog and of this package, and these jars."""
    from raylog.spark import java, register

    java.prepare()
    from pyspark.sql import SparkSession

    from benchmarks.analytics.sources import ReadyMade

    builder = SparkSession.builder.master("local[2]").appName("raylog-benchmarks")
    for name, value in {**SETTINGS, **({"spark.jars": ",".join(jars)} if jars else {})}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(ReadyMade)
    return spark


def read(spark: SparkSession, task: Task) -> Outcome:
    """Read a source from its beginning to its end, and sum up the lengths of all values."""
    frame = spark.read.format(task["format"]).options(**task["options"]).load()
    if where := task.get("where"):
        frame = frame.where(where)
    phase = Phase(task.get("server_pids", ()))
    [row] = frame.selectExpr("count(1) as records", "coalesce(sum(length(value)), 0) as size").collect()
    return {**phase.read(int(row.records), int(row.size)), "once": int(row.records), "stored": task["records"]}


def begin(settings: Task) -> Mapping[str, Callable[[Task], Outcome]]:
    """Start Spark."""
    spark = session(settings.get("jars", []))
    return {
        "read": lambda task: read(spark, task),
        "stream": lambda task: spark_streams.stream(spark, task),
        "write": lambda task: spark_streams.write(spark, task),
    }


if __name__ == "__main__":
    serve(begin)
