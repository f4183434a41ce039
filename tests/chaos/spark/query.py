"""The driver of the query: ``python -m tests.chaos.spark.query SPEC``, SPEC in JSON; its parent kills and restarts it.

Reads the source's committed records and writes a copy of each, which names its source, with executors that are
processes of their own. Prints a line of JSON for each micro-batch. Ends when its standard input ends, or when the
query fails: the next life goes on from the checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.chaos.injuries.namespace import end_with_parent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 0.2
EXECUTOR_MB: Final = 512
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "640m",
    "spark.executor.memory": f"{EXECUTOR_MB}m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": "8",
    # Three JVMs begin again and again beside the cluster: the second compiler costs more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Executors are killed all the time; Spark would give up after ten.
    "spark.deploy.maxExecutorRetries": "-1",
}


class QuerySpec(msgspec.Struct, frozen=True):
    """What one life of the driver does."""

    bootstrap: str
    secret: str
    source: str
    results: str
    checkpoint: str
    guarantee: str = "exactly-once"
    executors: int = 2
    life: int = 1


def copying(spark: SparkSession, spec: QuerySpec) -> Any:
    """Start the query that copies the source."""
    address = {"raylog.bootstrap": spec.bootstrap, "raylog.secret": spec.secret}
    source = spark.readStream.format("raylog").options(
        **address, subscribe=spec.source, startingOffsets="earliest", **{"kafka.isolation.level": "read_committed"}
    )
    named = "cast(partition as string), '@', cast(offset as string), '|', '{}', '|', cast(value as string)"
    copies = source.load().selectExpr(f"cast(concat({named.format(spec.life)}) as binary) as value", "partition")
    writer = copies.writeStream.format("raylog").options(
        **address, topic=spec.results, deliveryGuarantee=spec.guarantee, checkpointLocation=spec.checkpoint
    )
    return writer.trigger(processingTime="0 seconds").start()


def session(executors: int) -> SparkSession:
    """Spark with executors of one core each, in processes of their own, where there are any."""
    from raylog.spark import java, register

    java.prepare()
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    os.environ.setdefault("SPARK_SCALA_VERSION", "2.13")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = f"local-cluster[{executors},1,{EXECUTOR_MB}]" if executors else "local[2,8]"
    builder = SparkSession.builder.master(master).appName("raylog-chaos")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")  # why tasks were repeated
    register(spark)
    return spark


def main() -> None:
    """Run the query until the parent ends it; the exit status is 1 when it failed."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    spec = msgspec.json.decode(sys.argv[1], type=QuerySpec)
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, name="parent", daemon=True).start()
    spark = session(spec.executors)
    query = copying(spark, spec)
    done = -1
    while not over.is_set() and not query.awaitTermination(LOOK_S):  # raises the query's error
        last = query.lastProgress
        if last is not None and last["batchId"] > done and last["numInputRows"]:
            done = last["batchId"]
            answers.write(json.dumps({"batch": done, "rows": last["numInputRows"]}) + "\n")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
