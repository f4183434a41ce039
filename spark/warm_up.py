"""A query that reads no topic, run while a session starts: it starts what the first real query would wait for.

Used by raylog.spark.session. A Python data source needs a Python process for every step of planning and for every task,
and Spark loads the classes of its planner with the first query. This query is planned while the executors' JVMs start,
for which the session waits anyhow.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "raylog-warm-up"
TASKS_MAX = 32
READING = ("pyarrow", "raylog.spark.reading.reader", "raylog.client.ranges.reading", "raylog.client.runtime")
"""Modules that a task of `format("raylog")` imports."""


class WarmUpSource(DataSource):
    """Gives one row from each task; only the side effects of reading it matter."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`, of no use to users."""
        return NAME

    def schema(self) -> str:
        """The schema: one column, the number of the task."""
        return "task int"

    def reader(self, schema: Any) -> WarmUpReader:
        """The reader for as many tasks as the option `tasks` says."""
        return WarmUpReader(int(self.options["tasks"]))


class WarmUpReader(DataSourceReader):
    """Imports in every task what reading a topic needs."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """One partition for each task."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Import what reading needs; runs in a worker process, which Spark then reuses for other tasks."""
        for name in READING:
            import_module(name)
        import pyarrow

        yield pyarrow.RecordBatch.from_pydict({"task": pyarrow.array([partition.value], pyarrow.int32())})


def run(spark: SparkSession, tasks: int) -> None:
    """Plan and run the query. Raises what Spark raises."""
    spark.dataSource.register(WarmUpSource)
    spark.read.format(NAME).option("tasks", min(tasks, TASKS_MAX)).load().collect()
