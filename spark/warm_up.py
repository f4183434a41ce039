"""A query that reads nothing, run while a session starts: it starts what the first real query would wait for.

Used by raylog.spark.session. Python data sources need a process of Python for every step of planning and for every
task, and Spark loads the classes of its planner with the first query. Planning this query takes place while the
executors' JVMs start, which is time that a session waits anyhow.
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
READING = ("pyarrow", "raylog.spark.reader", "raylog.client.ranges.reading", "raylog.client.runtime")
"""Modules that a task of `format("raylog")` imports."""


class WarmUpSource(DataSource):
    """One row from each task; only its side effects are wanted."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`, of no use to users."""
        return NAME

    def schema(self) -> str:
        """One column."""
        return "task int"

    def reader(self, schema: Any) -> WarmUpReader:
        """The reader for as many tasks as the option `tasks` says."""
        return WarmUpReader(int(self.options["tasks"]))


class WarmUpReader(DataSourceReader):
    """Imports in every task what reading a topic needs."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """One partition for a task."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Runs in a worker, which goes on to serve other tasks."""
        for name in READING:
            import_module(name)
        import pyarrow

        yield pyarrow.RecordBatch.from_pydict({"task": pyarrow.array([partition.value], pyarrow.int32())})


def run(spark: SparkSession, tasks: int) -> None:
    """Plan and run the query. Raises what Spark raises."""
    spark.dataSource.register(WarmUpSource)
    spark.read.format(NAME).option("tasks", min(tasks, TASKS_MAX)).load().collect()
