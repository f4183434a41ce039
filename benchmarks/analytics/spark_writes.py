"""A streaming query that writes: records a second through a sink. Run in `spark_worker`."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from benchmarks.analytics.progress import batches_of, throughput
from benchmarks.analytics.spark_streams import run_for
from benchmarks.analytics.workers import Phase, Task
from benchmarks.clients.base import Unsupported
from benchmarks.job import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 2


def write(spark: SparkSession, task: Task) -> Outcome:
    """Write numbered records of `size` bytes, as many a micro-batch as `batch_records`, for a time.

    The rate is that of whole micro-batches after the first ones, Spark's own logs of them included.
    """
    size = int(task["size"])
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=task["batch_records"], numPartitions=TASKS
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
