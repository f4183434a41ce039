"""Streaming queries: one that reads, with the times of its phases and of its records, and one that writes.

Run in `spark_worker`.
"""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING, Any

from benchmarks.analytics.progress import WARM_BATCHES, batches_of, medians, throughput
from benchmarks.analytics.workers import Phase, Task
from benchmarks.clients.base import Unsupported
from benchmarks.job import Outcome
from benchmarks.loads import STAMP
from benchmarks.report import stats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.2
WRITING_TASKS = 2
START_S = 120.0
"""Time for the first micro-batch, which starts Python processes and compiles code."""


def stream(spark: SparkSession, task: Task) -> Outcome:
    """Run a query for a time at processingTime=0, with a sink on the driver that notes when each record arrives.

    `origin` names where a record's time of origin is: "stamp" in its value, "timestamp" in that column, "" nowhere.
    """
    latencies: list[list[float]] = []

    def sink(batch: DataFrame, _: int) -> None:
        columns = {"stamp": "value", "timestamp": "timestamp"}.get(task["origin"], "1")
        rows = batch.selectExpr(columns).collect()
        latencies.append(_latencies_ms(task["origin"], [row[0] for row in rows]))

    frame = spark.readStream.format(task["format"]).options(**task["options"]).load()
    with tempfile.TemporaryDirectory(prefix="raylog-stream-") as folder:
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            run_for(query, task["seconds"])
            reports = [dict(report) for report in query.recentProgress]
        finally:
            query.stop()
    batches = batches_of(reports)
    if not batches:
        raise Unsupported(f"the stream had {len(reports)} micro-batches, too few to measure")
    found = [item for batch in latencies[WARM_BATCHES:] for item in batch]
    percentiles = {f"{name}_ms": value for name, value in stats.percentiles(found).items()} if found else {}
    return {**medians(batches), **percentiles, "records": sum(batch.rows for batch in batches)}


def run_for(query: Any, seconds: float) -> None:
    """Let a query run for so long after its first micro-batch with rows. Raises its error when it fails."""
    ends_s = time.monotonic() + START_S
    has_begun = False
    while time.monotonic() < ends_s:
        if query.awaitTermination(POLL_S):
            raise Unsupported("the stream ended by itself")
        if not has_begun and any(report["numInputRows"] for report in query.recentProgress):
            has_begun, ends_s = True, time.monotonic() + seconds
    if not has_begun:
        raise Unsupported(f"the stream had no rows within {START_S:.0f} s")


def _latencies_ms(origin: str, values: list[Any]) -> list[float]:
    if origin == "stamp":
        now_ns = time.monotonic_ns()
        return [(now_ns - STAMP.unpack_from(value)[0]) / 1e6 for value in values]
    if origin == "timestamp":
        now_s = time.time()
        return [(now_s - value.timestamp()) * 1000 for value in values]
    return []


def write(spark: SparkSession, task: Task) -> Outcome:
    """Write numbered records of `size` bytes, as many a micro-batch as `batch_records`, for a time.

    The rate is that of whole micro-batches after the first ones, Spark's own logs of them included.
    """
    size = int(task["size"])
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=task["batch_records"], numPartitions=WRITING_TASKS
    )
    frame = source.load().selectExpr(f"cast(rpad(cast(value as string), {size}, 'x') as binary) as value")
    with tempfile.TemporaryDirectory(prefix="raylog-stream-") as folder:
        writer = frame.writeStream.format(task["format"]).options(**task["options"])
        phase = Phase(task.get("server_pids", ()))
        query = writer.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        try:
            run_for(query, task["seconds"])
            reports = [dict(report) for report in query.recentProgress]
            used = phase.read(sum(int(report["numInputRows"]) for report in reports), 0)
        finally:
            query.stop()
    batches = batches_of(reports, warm=2)
    if not batches:
        raise Unsupported(f"the stream had {len(reports)} micro-batches, too few to measure")
    costs = {f"{side}_cpu_us": used[f"{side}_cpu_s"] / used["records"] * 1e6 for side in ("client", "server")}
    found = throughput(batches)
    return {**found, **costs, "bytes": found["records"] * size, "batches": len(batches)}
